-- The provider said: nothing for a while. KEYS: the cells that stand for the provider. ARGV: now, how long from now,
-- then each layer's numbers.
local now = read_clock(ARGV[1])
local till = now + tonumber(ARGV[2])
for i = 1, #KEYS do
  local limit, cell = read_limit(3 + (i - 1) * 6), load_cell(KEYS[i])
  if limit.algorithm == TOKEN then
    cell.held = max(cell.held, till)
    cell.at = max(cell.at, till + limit.depth - min(limit.interval, limit.depth))
  elseif limit.algorithm == LEAKY then
    cell.held = max(cell.held, till)
  elseif till > cell.at then
    cell.at, cell.held, cell.before = till, 0, 0
  end
  store_cell(KEYS[i], limit, cell, now)
end
return 1
