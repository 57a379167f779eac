-- Write the state after a grant to a waiter, and prolong the life of the keys if the new lease would outlast them, as
-- `late` says.
if late then expires = h_expires + h_delay + RETENTION end
--@include write_state
if late then
    call('PEXPIREAT', K, math.ceil(expires / 1000))
    call('PEXPIREAT', Q, math.ceil(expires / 1000))
end
