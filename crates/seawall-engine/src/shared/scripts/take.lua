-- Takes the cost from every layer, or from none: the twin of admit/layered.rs. KEYS: a cell for each layer.
-- ARGV: now, cost, then each layer's numbers. Answers: kind, wait or capacity, layer, shadowed, now, then each cell.
local now, cost = read_clock(ARGV[1]), tonumber(ARGV[2])
local layers, shadowed, longest = {}, 0, 0
local kind, value, refused = GO, 0, 0
for i = 1, #KEYS do
  local limit, cell = read_limit(3 + (i - 1) * 6), load_cell(KEYS[i])
  layers[i] = { limit = limit, cell = cell, tried = copy(cell) }
  if limit.mode ~= OFF and kind ~= TOO_COSTLY then
    local said, number = take_from(limit, layers[i].tried, now, cost)
    layers[i].said = said
    if said == GO then
      if limit.mode == ENFORCE then longest = max(longest, number) end
    elseif limit.mode == SHADOW then
      shadowed = shadowed + 2 ^ (i - 1)
    elseif said == TOO_COSTLY then
      kind, value, refused = TOO_COSTLY, number, i
    elseif kind == GO or number > value then
      kind, value, refused = REFUSED, number, i
    end
  end
end
local answer = { kind, value, refused - 1, shadowed, now }
if kind == GO then answer[2] = longest elseif kind == REFUSED then answer[2] = value - now end
for i = 1, #KEYS do
  local layer = layers[i]
  if kind == GO and layer.said == GO then
    layer.cell = layer.tried
    store_cell(KEYS[i], layer.limit, layer.cell, now)
  end
  answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = layer.cell.at, layer.cell.held, layer.cell.before
end
return answer
