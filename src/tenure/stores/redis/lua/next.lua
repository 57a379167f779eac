-- Read the state of the next name.
local function read(key, queue)
    K, Q = key, queue
    head = nil
    packed = call('HGET', K, '=')
    --@include read_state
end
