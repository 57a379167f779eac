# Tests have an `outbox` here.
