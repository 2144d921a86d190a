-- Gives back what a call took and did not use. KEYS: the cells it took from. ARGV: now, when it was taken, cost, then
-- each layer's numbers.
local now, taken_at, cost = read_clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = 1, #KEYS do
  local limit, cell = read_limit(4 + (i - 1) * 6), load_cell(KEYS[i])
  if limit.algorithm == TOKEN or limit.algorithm == LEAKY then
    cell.at = max(cell.at - limit.interval * cost, 0)
  elseif taken_at >= cell.at then
    cell.held = max(cell.held - cost, 0)
  elseif limit.algorithm == SLIDING and taken_at + limit.per >= cell.at then
    cell.before = max(cell.before - cost, 0)
  end
  store_cell(KEYS[i], limit, cell, now)
end
return 1
