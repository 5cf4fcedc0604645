"""What runs without any server: the durable log and the document container, in folders of this machine."""
