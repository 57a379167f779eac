-- The fields of the client, of all scripts but those that are called most.
local seen, run_id = ARGV[2], ARGV[#ARGV]
local publish, guard, bound, channel, owner = cmsgpack.unpack(ARGV[1])
