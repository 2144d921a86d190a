"""Draws the scoreboard: `python3 bench/healing/picture.py FILE.json > docs/img/healing.svg`, from a file that `--json` wrote."""

import json
import sys

LANES = [("none", "no retries", "#9aa0a6"), ("own", "the client's own retries", "#c5703a"), ("seawall", "behind Seawall", "#1f7a5c")]
LEFT, RIGHT, ROW, LANE, TOP = 190, 760, 50, 12, 64


def x(share):
    return LEFT + (RIGHT - LEFT) * share / 100


def main():
    rows = json.load(open(sys.argv[1]))
    kinds = list(dict.fromkeys(kind for kind, _, _ in rows))
    height = TOP + ROW * len(kinds) + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" font-family="system-ui, sans-serif" font-size="12">',
           f'<rect width="800" height="{height}" fill="#ffffff"/>',
           '<text x="16" y="24" font-size="15" font-weight="600" fill="#202124">Calls that succeed, in %</text>']
    at = 190
    for _, name, colour in LANES:
        out.append(f'<circle cx="{at}" cy="42" r="5" fill="{colour}"/><text x="{at + 10}" y="46" fill="#3c4043">{name}</text>')
        at += 60 + 7 * len(name)
    for share in (0, 25, 50, 75, 100):
        out.append(f'<line x1="{x(share)}" x2="{x(share)}" y1="{TOP}" y2="{height - 26}" stroke="#e3e5e8"/>'
                   f'<text x="{x(share)}" y="{height - 10}" text-anchor="middle" fill="#5f6368">{share}</text>')
    for row, kind in enumerate(kinds):
        top = TOP + ROW * row
        cells = [ways for one, _, ways in rows if one == kind]
        clients = f"{len(cells)} client{'s' if len(cells) > 1 else ''}"
        out.append(f'<text x="16" y="{top + 22}" fill="#202124">{kind}</text><text x="16" y="{top + 37}" font-size="10" fill="#80868b">{clients}</text>')
        for lane, (way, _, colour) in enumerate(LANES):
            y = top + 12 + LANE * lane
            shares = [ways[way]["share"] for ways in cells]
            mean = sum(shares) / len(shares)
            out.append(f'<line x1="{x(min(shares)):.1f}" x2="{x(max(shares)):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2" opacity="0.45"/>'
                       f'<circle cx="{x(mean):.1f}" cy="{y}" r="4.5" fill="{colour}"><title>{mean:.1f} %</title></circle>')
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
