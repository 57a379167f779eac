-- Find out in `may_grant` whether the marker says that this process may grant: it is of the form that this client writes,
-- the client knows its generation, and no quarantine is in force. See `quarantine` in state.lua.
local may_grant, longest, until_when, others_longest = false, 0, 0, 0
local marker = call('GET', KEYS[1])
if marker and string.sub(marker, 1, #MARK) == MARK then
    local _, ends, gone, known
    _, ends, longest, until_when, others_longest, gone, known = st.unpack('>dddddd', marker, #MARK + 1)
    known = string.sub(marker, known)
    may_grant = known == seen and ends <= now and gone > now + RETENTION + longest
        and (not run_id or string.sub(known, -#run_id) == run_id)
    quarantine_ends = ends
end
