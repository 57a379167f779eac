-- What a script finds around it in Redis, as far as ours need it: redis.call, cmsgpack, and no way to make a global.
--
-- Takes  a function that carries out a command: name, arguments... -> what a command answers, arrays unpacked
-- Returns  load(text) -> script,  run(script, number of keys, keys..., arguments...) -> the reply, see `emit`

local command = ...
local byte, char, floor, ceil = string.byte, string.char, math.floor, math.ceil
local concat, huge, sethook = table.concat, math.huge, debug.sethook

-- The commands that answer an array.
local ARRAYS = { MGET = true, TIME = true, ZRANGE = true, ZPOPMIN = true, PUBSUB = true }

local function array(...)
    local t = { ... }
    for i = 1, select('#', ...) do
        if t[i] == nil then t[i] = false end
    end
    return t
end

local function call(name, ...)
    if ARRAYS[name] then return array(command(name, ...)) end
    local answer = command(name, ...)
    if answer == nil then return false end
    if answer == true then return { ok = 'OK' } end
    return answer
end

-- MessagePack, as the library cmsgpack in Redis writes and reads it.

local pack_value

local function word(n)
    return char(floor(n / 16777216), floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

local function half(n)
    return char(floor(n / 256), n % 256)
end

local function pack_integer(n)
    if n >= 0 then
        if n < 128 then return char(n) end
        if n < 256 then return char(0xcc, n) end
        if n < 65536 then return '\205' .. half(n) end
        if n < 4294967296 then return '\206' .. word(n) end
        return '\207' .. word(floor(n / 4294967296)) .. word(n % 4294967296)
    end
    if n >= -32 then return char(256 + n) end
    if n >= -128 then return char(0xd0, 256 + n) end
    if n >= -32768 then return '\209' .. half(65536 + n) end
    if n >= -2147483648 then return '\210' .. word(4294967296 + n) end
    return '\211' .. word(floor(n / 4294967296) + 4294967296) .. word(n % 4294967296)
end

local function pack_string(s)
    local size = #s
    if size < 32 then return char(0xa0 + size) .. s end
    if size < 256 then return char(0xd9, size) .. s end
    if size < 65536 then return '\218' .. half(size) .. s end
    return '\219' .. word(size) .. s
end

local function pack_array(t)
    local size, parts = #t, {}
    for key in pairs(t) do
        if type(key) ~= 'number' or key < 1 or key > size or key ~= floor(key) then
            error('the simulated cmsgpack packs no table that is not an array')
        end
    end
    for i = 1, size do parts[i + 1] = pack_value(t[i]) end
    parts[1] = size < 16 and char(0x90 + size) or '\220' .. half(size)
    return concat(parts)
end

function pack_value(value)
    local kind = type(value)
    if kind == 'string' then return pack_string(value) end
    if kind == 'number' then
        if value ~= floor(value) or value >= 18446744073709551616 or value <= -huge then
            error('the simulated cmsgpack packs no number that is not an integer')
        end
        return pack_integer(value)
    end
    if kind == 'boolean' then return value and '\195' or '\194' end
    if kind == 'table' then return pack_array(value) end
    error('the simulated cmsgpack packs no ' .. kind)
end

local function read_integer(s, at, size)
    if size == 8 then
        local a, b, c, d, e, f, g, h = byte(s, at, at + 7)
        return ((a * 256 + b) * 256 + c) * 1099511627776 + (((d * 256 + e) * 256 + f) * 256 + g) * 256 + h
    end
    if size == 4 then
        local a, b, c, d = byte(s, at, at + 3)
        return ((a * 256 + b) * 256 + c) * 256 + d
    end
    local a, b = byte(s, at, at + size - 1)
    return size == 2 and a * 256 + b or a
end

local unpack_value

local function unpack_array(s, at, size)
    local t = {}
    for i = 1, size do t[i], at = unpack_value(s, at) end
    return t, at
end

-- Size of what follows a tag, by the tag.
local UNSIGNED = { [0xcc] = 1, [0xcd] = 2, [0xce] = 4, [0xcf] = 8 }
local SIGNED = { [0xd0] = 1, [0xd1] = 2, [0xd2] = 4, [0xd3] = 8 }
local STRING = { [0xd9] = 1, [0xda] = 2, [0xdb] = 4 }

function unpack_value(s, at)
    local tag = byte(s, at)
    at = at + 1
    if tag < 0x80 then return tag, at end
    local size = UNSIGNED[tag]
    if size then return read_integer(s, at, size), at + size end
    if tag >= 0x90 and tag < 0xa0 then return unpack_array(s, at, tag - 0x90) end
    if tag >= 0xa0 and tag < 0xc0 then return s:sub(at, at + tag - 0xa1), at + tag - 0xa0 end
    if tag == 0xc2 or tag == 0xc3 then return tag == 0xc3, at end
    if tag == 0xdc then return unpack_array(s, at + 2, read_integer(s, at, 2)) end
    if tag >= 0xe0 then return tag - 256, at end
    size = STRING[tag]
    if size then
        local length = read_integer(s, at, size)
        return s:sub(at + size, at + size + length - 1), at + size + length
    end
    size = SIGNED[tag]
    if not size then error(string.format('the simulated cmsgpack knows no tag %02x', tag)) end
    local n = size == 8 and (byte(s, at) >= 128 and (read_integer(s, at, 4) - 4294967296) or read_integer(s, at, 4))
        * 4294967296 + read_integer(s, at + 4, 4)
        or read_integer(s, at, size)
    if size < 8 and n >= 256 ^ size / 2 then n = n - 256 ^ size end
    return n, at + size
end

local function pack_all(...)
    local parts = { ... }
    for i = 1, select('#', ...) do parts[i] = pack_value(parts[i]) end
    return concat(parts)
end

local function unpack_all(s)
    local values, count, at = {}, 0, 1
    while at <= #s do
        count = count + 1
        values[count], at = unpack_value(s, at)
    end
    return unpack(values, 1, count)
end

-- The reply of a script, as pairs of a kind and a value: 0 nil, 1 number or text, 2 an array of so many that follow.

local function emit(out, value)
    local kind, at = type(value), #out
    if kind == 'number' then
        out[at + 1], out[at + 2] = 1, value >= 0 and floor(value) or ceil(value)
    elseif kind == 'string' then
        out[at + 1], out[at + 2] = 1, value
    elseif kind == 'table' then
        if value.err then error(value.err, 0) end
        if value.ok then
            out[at + 1], out[at + 2] = 1, value.ok
            return
        end
        local size = 0
        while value[size + 1] ~= nil do size = size + 1 end
        out[at + 1], out[at + 2] = 2, size
        for i = 1, size do emit(out, value[i]) end
    else
        out[at + 1], out[at + 2] = kind == 'boolean' and value and 1 or 0, 1
    end
end

-- What a script can see. As in Redis, it can make no global, and read none that is not there.
local world = {
    redis = { call = call },
    cmsgpack = { pack = pack_all, unpack = unpack_all },
}
for _, name in ipairs({ 'assert', 'error', 'ipairs', 'math', 'next', 'pairs', 'pcall', 'select', 'string', 'table',
    'tonumber', 'tostring', 'type', 'unpack' }) do
    world[name] = _G[name]
end
setmetatable(world, {
    __newindex = function(_, name) error('Script attempted to create global variable ' .. tostring(name), 2) end,
    __index = function(_, name) error('Script attempted to access nonexistent global variable ' .. tostring(name), 2) end,
})

local function load(text)
    return setfenv(assert(loadstring(text, '@user_script')), world)
end

local function too_long()
    error('the script does not end')
end

local function run(script, keys, ...)
    sethook(too_long, '', 10000000)
    local all, first, rest = { ... }, {}, {}
    for i = 1, keys do first[i] = all[i] end
    for i = keys + 1, #all do rest[i - keys] = all[i] end
    rawset(world, 'KEYS', first)
    rawset(world, 'ARGV', rest)
    local out = {}
    emit(out, script())
    return unpack(out)
end

return load, run
