-- Grant several names in their order, up to the first that cannot be granted.
--
-- KEYS  1 marker, then for each name: state  queue  tombstone
-- ARGV  1 see request_fields in start.lua  3 proposal  4 wait (1 or 0)  5... the request id for each name
-- Returns  for each name, up to the first that is not granted, what acquire returns
@request_fields()
local seen, run_id = ARGV[2], ARGV[#ARGV]
@table()
@next()

local proposal, wait = tonumber(ARGV[3]), ARGV[4] == '1'
local request, refused
local vote = false -- a multi-acquire never asks for a vote
@full_acquire()

local replies = {}
for i = 1, (#KEYS - 1) / 3 do
    if i > 1 then read(KEYS[3 * i - 1], KEYS[3 * i]) end
    request = ARGV[4 + i]
    local buried = call('GET', KEYS[3 * i + 1])
    begin()
    begin_queue()
    quarantine(ttl + delay)
    refused = request == released or (buried and tonumber(buried) > now)
    replies[i] = acquire()
    save()
    if replies[i][1] ~= 1 then break end
end
return told(replies)
