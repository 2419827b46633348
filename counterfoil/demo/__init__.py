"""The main job, seen: orders from several writers, processes killed on the way, and an account at the end."""
