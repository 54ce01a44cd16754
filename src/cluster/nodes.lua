-- Keeps what each node tells of itself, with the time of its last beat by this server's own clock, and answers what all
-- of them told: three texts for each: its incarnation, the age in microseconds (-1: it is no record), and the record.
-- KEYS[1]: a hash by incarnation. ARGV: this node's incarnation (empty: only reads), for how long a record is kept
-- (microseconds), and its record (empty: it leaves).
local me, keep, record = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local answer, told = {}, {}
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'hash' then told = redis.call('HGETALL', KEYS[1]) end
-- More than anybody runs, or another type: another program's.
if (kind ~= 'hash' and kind ~= 'none') or #told > 4000 then
  answer, told = {KEYS[1], '-1', ''}, {}
  if me ~= '' then redis.call('DEL', KEYS[1]) end
end
for at = 1, #told, 2 do
  local node, value = told[at], told[at + 1]
  local time, text = string.match(value, '^(%d+) (.*)$')
  local age = time and #value <= 1024 and #node <= 64 and now - tonumber(time)
  if me ~= '' and (not age or math.abs(age) > keep) then redis.call('HDEL', KEYS[1], node) end
  local shown = {string.sub(node, 1, 64), '-1', ''}
  if age then shown = {node, string.format('%.0f', math.max(age, 0)), text} end
  if node ~= me and not (age and math.abs(age) > keep) then
    for _, part in ipairs(shown) do table.insert(answer, part) end
  end
end
if me ~= '' and record ~= '' then
  redis.call('HSET', KEYS[1], me, string.format('%.0f ', now) .. record)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', keep / 1000))
  for _, part in ipairs({me, '0', record}) do table.insert(answer, part) end
elseif me ~= '' then
  redis.call('HDEL', KEYS[1], me)
end
return answer
