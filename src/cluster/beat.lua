-- Says that a node is alive, by this server's own clock. Answers how many are, and 1 if something else stood in the key,
-- which was replaced.
-- KEYS[1]: a sorted set of nodes by the time of their last beat. ARGV: the node, and for how long a beat counts (µs).
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local kind = redis.call('TYPE', KEYS[1]).ok
local had_garbage = kind ~= 'zset' and kind ~= 'none'
if had_garbage then redis.call('DEL', KEYS[1]) end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - tonumber(ARGV[2])))
redis.call('PEXPIRE', KEYS[1], 60000)
return { redis.call('ZCARD', KEYS[1]), had_garbage and 1 or 0 }
