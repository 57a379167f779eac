"""What the clients of servers share above plain sockets."""
