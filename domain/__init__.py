"""What the business decides. No database, no Kafka, and nothing of ours outside this package."""
