"""What turns pixels into text: one protocol, several engines."""
