"""What a box of Linux namespaces is made of; ``sandboxes.bubblewrap`` puts it together."""
