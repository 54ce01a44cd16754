-- Puts the record of one node into the hash KEYS[1], and answers what all nodes told in the last five minutes, by this
-- server's own clock. ARGV: the node's incarnation, and its record; an empty one: none is put, and its own is removed.
-- Answer: incarnation, age (milliseconds) and record of each node.
local keep, clock, nodes = 300000, redis.call('TIME'), {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local all = redis.pcall('HGETALL', KEYS[1])
if all.err then return redis.call('DEL', KEYS[1]) and all end -- something else stood there
if ARGV[2] ~= '' then -- first, since a server whose memory is full refuses the first write only
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f %s', now, ARGV[2]))
  redis.call('PEXPIRE', KEYS[1], keep)
  nodes[1] = { ARGV[1], 0, ARGV[2] }
end
for n = 1, #all, 2 do
  local at, record = string.match(all[n + 1], '^(%d+) (.*)$')
  local age, is_own = math.max(now - (tonumber(at) or 0), 0), all[n] == ARGV[1]
  if age > keep or (is_own and ARGV[2] == '') then
    redis.call('HDEL', KEYS[1], all[n])
  elseif not is_own then
    table.insert(nodes, { all[n], age, record })
  end
end
return nodes
