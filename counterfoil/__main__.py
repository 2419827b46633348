from counterfoil.cli import main

main()
