-- Read the state of the next name.
local function read(key, queue)
    K, Q = key, queue
    head = nil
    packed = call('HGET', K, '=')
    if packed then
        counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy,
            h_request, h_channel, h_owner, h_token, h_weight, h_ttl, h_delay, h_granted, h_expires, h_told,
            others, barging = cmsgpack.unpack(packed)
    else
        counter, capacity, blocked, block, released, used, last_place, expires, queued, slowest, heavy, h_request,
            others, barging = 0, 1, 0, 0, '', 0, 0, 0, 0, 0, false, '', false, false
    end
end
