"""Publications: which changes the server sends, proved against its catalog."""
