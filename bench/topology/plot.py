"""Plots of `bench/topology:placement all > FILE`: python3 bench/topology/plot.py FILE [FOLDER]. SVG, no library needed."""
import json
import pathlib
import sys

WIDTH, BAR, LEFT = 900, 14, 430


def bars(title, rows, unit):
    """rows: (label, value, colour)."""
    most = max((value for _, value, _ in rows), default=1) or 1
    height = 40 + BAR * 1.4 * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="11">',
           f'<text x="8" y="20" font-size="14">{title}</text>']
    for i, (label, value, colour) in enumerate(rows):
        y = 34 + BAR * 1.4 * i
        length = (WIDTH - LEFT - 90) * value / most
        out.append(f'<text x="{LEFT - 6}" y="{y + 11:.0f}" text-anchor="end">{label}</text>')
        out.append(f'<rect x="{LEFT}" y="{y:.0f}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + length + 4:.0f}" y="{y + 11:.0f}">{value:.1f} {unit}</text>')
    return '\n'.join(out + ['</svg>\n'])


def main():
    data = json.loads(pathlib.Path(sys.argv[1]).read_text())
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else 'out')
    folder.mkdir(parents=True, exist_ok=True)
    if 'gap' in data:
        rows = [(f'{r["traffic"]}, {r["by"]}', r['mean_gap_percent'], '#2a6' if r['by'] == 'solver' else '#999') for r in data['gap']]
        (folder / 'placement_gap.svg').write_text(bars('Mean gap to the optimum, 16 nodes', rows, '%'))
    if 'versus' in data:
        rows, seen = [], set()
        for r in data['versus']['rows']:
            key = (r['cluster'], r['seed'], r['job'])
            label = f'{r["job"]} ({r["cluster"]}, {r["seed"]})'
            if key not in seen:
                rows.append((f'{label}, solver', 1e3 * r['solver_step_s'], '#2a6'))
                seen.add(key)
            if r['against'] == 'best-fit':
                rows.append((f'{label}, best-fit', 1e3 * r['step_s'], '#999'))
        (folder / 'placement_versus.svg').write_text(bars('Predicted time of the exchange', rows, 'ms'))
    if 'scale' in data:
        rows = [(f'{r["tasks"]} tasks, {r["job"]}, {what}', r[what + '_s'], '#2a6') for r in data['scale'] if 'solve_s' in r for what in ('solve', 'replan')]
        (folder / 'placement_scale.svg').write_text(bars('Planning on a fabric of 100,352 GPUs', rows, 's'))


if __name__ == '__main__':
    main()
