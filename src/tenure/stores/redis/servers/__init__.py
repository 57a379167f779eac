"""The servers of a Redis deployment: what a URL says of them, which holds a name, and the links to them."""
