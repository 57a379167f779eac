-- Return which names are held or waited for, without serving any queue.
--
-- KEYS  1 marker, then for each name: state  queue
-- Returns  for each name 1 if `inspect` shows a holder or a waiter of it, else 0
@operation()
@next()

local function waited_for()
    for _, request in ipairs(head and call('ZRANGE', Q, 0, -1) or {}) do
        if waiter(request) and not lapsed[request] then return true end
    end
    return false
end

local found = {}
for i = 1, (#KEYS - 1) / 2 do
    if i > 1 then read(KEYS[2 * i], KEYS[2 * i + 1]) end
    begin()
    found[i] = (holders[1] or waited_for()) and 1 or 0
end
quarantine(0, true)
return told(found)
