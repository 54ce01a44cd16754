-- The whole job in nginx: key, rate limit (GCRA), parameters, answers in memory, and their invalidation by setPoints.
-- With the port of a Redis, one script there decides on the limit of all nodes.
local keys = {
@KEYS
}
local RATE, BURST, TTL = 1000000, 1000000, 600
local REDIS = tonumber("@REDIS")
local READS = { ["/getPoints"] = true, ["/getWarns"] = true, ["/getReviews"] = true }
local answers, rates = ngx.shared.answers, ngx.shared.rates

local function send(status, text)
  ngx.status = status
  ngx.header.content_length = #text
  ngx.print(text)
end

local SCRIPT = [[
local time = redis.call("TIME")
local now = time[1] * 1000000 + time[2]
local free_at = math.max(now, tonumber(redis.call("GET", KEYS[1]) or 0)) + ARGV[1]
if free_at > now + ARGV[2] then return 1 end
redis.call("SET", KEYS[1], string.format("%.0f", free_at), "PX", 2000)
return 0
]]
local loaded

local function is_over_shared_limit(key)
  local redis = require("nginx.redis"):new()
  redis:set_timeouts(50, 50, 50)
  assert(redis:connect("127.0.0.1", REDIS))
  loaded = loaded or assert(redis:script("load", SCRIPT))
  local is_over = assert(redis:evalsha(loaded, 1, "limit:" .. key, 1000000 / RATE, 1000000 * BURST / RATE))
  redis:set_keepalive(60000, 128)
  return is_over == 1
end

local function is_over_limit(key)
  if REDIS then return is_over_shared_limit(key) end
  local now = ngx.now()
  local free_at = rates:get(key) or now
  if free_at < now then free_at = now end
  free_at = free_at + 1 / RATE
  if free_at > now + BURST / RATE then return true end
  rates:set(key, free_at)
  return false
end

local function ask_origin(path, body)
  local reply = ngx.location.capture("/origin" .. path, { method = ngx.HTTP_POST, body = body })
  return reply.status, reply.body
end

local function answer()
  local secret, path = ngx.var.http_authorization, ngx.var.uri
  if not secret then return send(401, "01 | No api key provided!") end
  local key = keys[secret]
  if not key then return send(401, "02 | Incorrect API key!") end
  if is_over_limit(key) then return send(429, "12 | Too many requests!") end
  ngx.req.read_body()
  local form = ngx.req.get_post_args(4)
  local member = form.memberID
  if not member then return send(400, "04 | Param 'memberID' is not provided!") end
  if member:find("%D") then return send(400, "05 | Param 'memberID' should contain only integers!") end
  if path == "/setPoints" then
    local points = key .. "/getPoints " .. member
    answers:delete(points)
    local status, text = ask_origin(path, "memberID=" .. member .. "&amount=" .. (form.amount or ""))
    answers:delete(points)
    return send(status, text)
  end
  if not READS[path] then return send(404, "11 | Unknown operation!") end
  local entry = key .. path .. " " .. member
  local text = answers:get(entry)
  if text then return send(200, text) end
  local status
  status, text = ask_origin(path, "memberID=" .. member)
  if status == 200 then answers:set(entry, text, TTL) end
  return send(status, text)
end

return { answer = answer }
