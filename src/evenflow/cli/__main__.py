from evenflow.cli import main

main()
