"""What goes out to addresses that submitters chose: the guard, documents by URL, callbacks."""
