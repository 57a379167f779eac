-- Write the state of a name.
--@include pack_state
call('HSET', K, '=', packed)
