-- Find out in `may_grant` whether the marker says that this process may grant: the client knows its generation, and no
-- quarantine is in force. See `quarantine` in state.lua.
local may_grant, longest, until_when, others_longest = false, 0, 0, 0
local marker = call('GET', KEYS[1])
if marker and string.byte(marker) == USUAL then
    local _, ends, gone, known
    _, _, ends, longest, until_when, others_longest, gone, known = st.unpack('>Bdddddd', marker)
    known = string.sub(marker, known)
    may_grant = known == seen and ends <= now and gone > now + RETENTION + longest
        and (not run_id or string.sub(known, -#run_id) == run_id)
    quarantine_ends = ends
end
