"""`redlock://`: a name is held by who holds it at a majority of independent nodes."""
