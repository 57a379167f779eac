"""`holdfast demo`: a web access log, counted into one shared record by many processes, without a lock and with one."""
