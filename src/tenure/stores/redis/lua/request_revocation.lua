-- Send a revocation request to the holders of the name.
--
-- Returns  the holders that have a channel, as inspect returns them
@operation()
@views()

begin()
begin_queue()
serve_queue()
local all = holders
holders = {}
for _, holder in ipairs(all) do
    if holder[CHANNEL] ~= '' then
        holders[#holders + 1] = holder
        push(holder[CHANNEL], string.format('A %.0f %s', holder[TOKEN], holder[REQUEST]))
    end
end
local shown = shown_holders()
holders = all
save()
return shown
