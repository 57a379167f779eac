-- Push a message to a channel. In a Cluster the channel lies in the slot of the name.
local function push(to, message)
    if to == '' then return true end
    return call(publish, (publish == 'SPUBLISH' and K or 'tenure') .. ':channel:' .. to, message) > 0
end
