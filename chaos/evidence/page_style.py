"""Style and script of the page of a run under live faults.

Both are text inside the page, so that it needs no other file and no network. Colours follow the reader's choice of
light or dark; below 46 em the lanes put their labels above the plots.
"""

from __future__ import annotations

CSS = """
:root{color-scheme:light dark;--bg:#f4f5f7;--card:#fff;--ink:#14171c;--soft:#5c6675;--rule:#e2e6ec;--grid:#eceff3;
--ok:#12805c;--ok-bg:#e3f4ec;--bad:#c0261c;--bad-bg:#fdeae8;--doubt:#9a5b00;--doubt-bg:#fdf1dc;--accent:#2563c9;
--band:#f6b94a55;--c0:#c0392b;--c1:#2563c9;--c2:#b7791f;--c3:#7b3fb5;--c4:#0f8a8a;--c5:#c2408d;--c6:#4d7c0f;--c7:#52606d}
@media(prefers-color-scheme:dark){:root{--bg:#0d1015;--card:#151a21;--ink:#e8ecf1;--soft:#94a0b0;--rule:#29313c;
--grid:#1f262f;--ok:#45c08f;--ok-bg:#10281f;--bad:#ff7a6e;--bad-bg:#351714;--doubt:#f0b44c;--doubt-bg:#332408;
--accent:#6ea3f7;--band:#f6b94a3d;--c0:#ff7a6b;--c1:#6ea3f7;--c2:#e5ae4e;--c3:#b98cf0;--c4:#48c5c1;--c5:#f085c0;
--c6:#9ccc55;--c7:#9aa7b5}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1240px;margin:0 auto;padding:20px clamp(12px,2.4vw,28px) 40px}
h1{font-size:clamp(21px,3vw,30px);line-height:1.2;margin:0;letter-spacing:-.01em}
h2{font-size:13px;font-weight:600;margin:30px 0 10px;color:var(--soft);text-transform:uppercase;letter-spacing:.07em}
header{display:flex;gap:18px;align-items:center;padding:20px 22px;border-radius:12px;border:1px solid var(--rule);
background:var(--card);border-left:6px solid var(--tone)}
header.held{--tone:var(--ok);--wash:var(--ok-bg)}header.violated{--tone:var(--bad);--wash:var(--bad-bg)}
header.not_proven{--tone:var(--doubt);--wash:var(--doubt-bg)}
header svg{flex:none;width:54px;height:54px;border-radius:50%;background:var(--wash);padding:13px;stroke:var(--tone);
fill:none;stroke-width:3;stroke-linecap:round;stroke-linejoin:round}
header p{margin:5px 0 0;color:var(--soft)}header ul{margin:8px 0 0;padding-left:18px;color:var(--tone)}
header b{color:var(--ink);font-weight:600}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(132px,1fr));gap:10px;margin:12px 0 0;padding:0}
.figures div{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px 14px}
.figures dt{color:var(--soft);font-size:12.5px}
.figures dd{margin:2px 0 0;font-size:23px;font-weight:650;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.figures small{display:block;font-size:12px;font-weight:400;color:var(--soft);letter-spacing:0}
.figures .good dd{color:var(--ok)}.figures .wrong dd{color:var(--bad)}.figures .unknown dd{
color:var(--soft);font-size:18px;line-height:1.8}
.card{background:var(--card);border:1px solid var(--rule);border-radius:12px;padding:14px 18px}
.now{display:flex;flex-wrap:wrap;gap:2px 16px;min-height:1.5em;margin:0 0 6px;font-size:13px;color:var(--soft);
font-variant-numeric:tabular-nums}.now b{color:var(--ink)}
.lanes{position:relative;--label:186px;--gutter:58px}
.lane{display:grid;grid-template-columns:var(--label) 1fr;padding-right:var(--gutter);border-top:1px solid var(--rule)}
.lane.axis,.lane.states{border-top:0}.axis-bottom{border-top:1px solid var(--rule)}
.label{padding:7px 12px 6px 0;font-size:13px;line-height:1.3}.label b{display:block;font-weight:600}
.label span{color:var(--soft);font-size:12px}
.plot{position:relative;height:72px;margin:6px 0}
.plot svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
.axis .plot{height:18px;margin:2px 0}.states .plot{height:16px;margin:9px 0}.memory .plot{height:44px}
.tick{position:absolute;transform:translateX(-50%);font-size:11.5px;color:var(--soft);font-variant-numeric:tabular-nums}
.tick:first-child{transform:none}
.top,.half{position:absolute;left:calc(100% + 8px);font-size:11px;color:var(--soft);white-space:nowrap;line-height:1;
font-variant-numeric:tabular-nums}.top{top:-2px}.half{top:calc(50% - 5px)}
path{vector-effect:non-scaling-stroke;fill:none}.grid{stroke:var(--grid)}
.line{stroke:var(--hue);stroke-width:1.6;stroke-linejoin:round}.area{fill:var(--hue);fill-opacity:.13}
.rate{--hue:var(--accent)}.lag{--hue:var(--c3)}.age{--hue:var(--c4)}.memory{--hue:var(--c7)}
.bar{stroke:var(--c4);stroke-width:1.3;stroke-opacity:.75}.stem{stroke:var(--doubt);stroke-width:1.6}
.band{fill:var(--band)}.strike{stroke:var(--hue);stroke-width:1;stroke-opacity:.4}
.dot{position:absolute;width:9px;height:9px;margin:0 0 -4px -4px;border-radius:50%;background:var(--doubt);
border:1.5px solid var(--card)}
.state{position:absolute;top:0;bottom:0;background:var(--c7);opacity:.85}.state.running{background:var(--ok)}
.state.recovering{background:#f0a020}.state.starting{background:var(--accent)}.state.down{background:var(--bad)}
.driver{position:absolute;top:-5px;bottom:-5px;width:2px;background:var(--ink)}
.faults .plot{height:22px;margin:4px 0;align-self:center}.faults .label{padding:4px 12px 4px 0}
.faults .label b{color:var(--hue);display:inline;margin-right:7px;overflow-wrap:anywhere}
.faults{border-top-style:dashed}.states+.lane,.epochs+.faults,.recoveries{border-top-style:solid}
.rail{position:absolute;left:0;right:0;top:50%;height:1px;background:var(--rule)}
.fault{position:absolute;top:50%;width:12px;height:12px;margin:-6px 0 0 -6px;
transform:rotate(45deg);border-radius:2.5px;
background:var(--hue);border:1.5px solid var(--card);cursor:help}
.fault.missed{background:var(--card);border:2px dashed var(--bad)}
.fault:hover,.fault:focus{transform:rotate(45deg) scale(1.35);outline:2px solid var(--ink);outline-offset:1px;z-index:2}
.outage{position:absolute;top:50%;height:8px;margin-top:-4px;background:var(--hue);opacity:.33;border-radius:4px}
.c0{--hue:var(--c0)}.c1{--hue:var(--c1)}.c2{--hue:var(--c2)}.c3{--hue:var(--c3)}.c4{--hue:var(--c4)}
.c5{--hue:var(--c5)}.c6{--hue:var(--c6)}.c7{--hue:var(--c7)}
.none{margin:0;color:var(--soft);font-size:12.5px;position:absolute;top:calc(50% - .7em)}
.cross{position:absolute;top:0;bottom:0;width:1px;background:var(--ink);opacity:.45;pointer-events:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:10px 0 0;font-size:12px;color:var(--soft)}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px}th{text-align:left;font-weight:600;color:var(--soft);
font-size:12px}th,td{padding:7px 14px 7px 0;border-bottom:1px solid var(--rule);vertical-align:top}
tr:last-child td{border-bottom:0}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td.name{white-space:nowrap}td.target{min-width:110px;max-width:280px;overflow-wrap:anywhere}td.wide{min-width:220px;overflow-wrap:anywhere}
.chip{display:inline-block;padding:1px 9px;border-radius:20px;font-size:12px;font-weight:600;white-space:nowrap}
.chip.good{color:var(--ok);background:var(--ok-bg)}.chip.wrong{color:var(--bad);background:var(--bad-bg)}
.key{display:inline-block;width:9px;height:9px;transform:rotate(45deg);border-radius:2px;background:var(--hue);
margin:0 9px 0 2px}
pre{margin:0;overflow-x:auto;font:13px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre+p{margin:10px 0 0}.soft{color:var(--soft);font-size:13px}
@media(max-width:46em){.lanes{--label:0px;--gutter:0px}.top{left:auto;right:0}.half{display:none}.lane{display:block}
.label{padding:7px 0 0}.label b{display:inline;
margin-right:7px}.axis .label{display:none}.tick.minor{display:none}.plot{height:64px}header{padding:16px}
header svg{width:42px;height:42px;padding:10px}.card{padding:12px}.figures{grid-template-columns:repeat(2,1fr)}
.faults .plot{margin:0 0 5px}.states .plot{margin:7px 0 9px}}
@media(prefers-reduced-motion:no-preference){.fault{transition:transform .1s}}
@media print{body{background:#fff}.card,header{break-inside:avoid}}
"""

SCRIPT = """
(() => {
  const lanes = document.querySelector('.lanes'), now = document.querySelector('.now');
  const cross = lanes.querySelector('.cross'), plot = lanes.querySelector('.axis .plot');
  const data = JSON.parse(document.getElementById('samples').textContent), hint = now.innerHTML;
  const show = (value, form) => value === null ? 'unknown' : form(value);
  const whole = value => Math.round(value).toLocaleString('en-US');
  const time = ms => {
    const s = Math.round(ms / 1000), two = n => String(n).padStart(2, '0');
    return s < 3600 ? Math.floor(s / 60) + ':' + two(s % 60)
      : Math.floor(s / 3600) + ':' + two(Math.floor(s / 60) % 60) + ':' + two(s % 60);
  };
  const say = (name, value) => {
    const span = document.createElement('span'), bold = document.createElement('b');
    bold.textContent = value;
    span.append(name + ' ', bold);
    now.append(span);
  };
  lanes.addEventListener('pointermove', event => {
    const box = plot.getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
    if (part < 0 || part > 1 || !data.length) return leave();
    const at = part * Number(lanes.dataset.end);
    let low = 0, high = data.length - 1;
    while (low < high) { const mid = (low + high) >> 1; if (data[mid][0] < at) low = mid + 1; else high = mid; }
    const [ms, state, rate, lag, age, epoch] = data[low];
    cross.hidden = false;
    cross.style.left = box.left - lanes.getBoundingClientRect().left + part * box.width + 'px';
    now.textContent = '';
    say('at', time(ms)); say('job', state ?? 'unknown'); say('records/s', show(rate, whole));
    say('lag', show(lag, whole)); say('epoch', show(epoch, whole));
    say('checkpoint age', show(age, value => (value / 1000).toFixed(1) + ' s'));
  });
  const leave = () => { cross.hidden = true; now.innerHTML = hint; };
  lanes.addEventListener('pointerleave', leave);
})();
"""
