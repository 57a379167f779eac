-- End the quarantine of this node, for an operator who knows that nobody works under a lease that it has forgotten.
--
-- Returns  how many microseconds the quarantine would have lasted
@fields()
@start()
@state()

local left = math.max(0, quarantine(0) - now)
if left > 0 then
    marker[3] = now
    write_marker()
end
return told(left)
