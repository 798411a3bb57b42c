"""A dataflow as a page: its graph and the costs of the last steps, in an HTML file.

The page needs no server and no network. Names are in JSON, and the page inserts them as text only.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark_diff.engine.explanation import Operator
from pyspark_diff.trace.storage import put_in_place


class StepCosts(NamedTuple):
    """Operators with their costs in a step."""

    step: int
    seconds: float
    operators: Sequence[Operator]


def page(steps: Sequence[StepCosts]) -> str:
    """The page of some steps, the latest last."""
    data = [
        {"step": s.step, "seconds": s.seconds, "operators": [_fields(o) for o in s.operators]}
        for s in steps
    ]
    # Only "<" could end the script, and JSON has it in strings alone.
    return _PAGE.replace("@STEPS@", json.dumps(data).replace("<", "\\u003c"))


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page; an existing file is replaced atomically.

    Raises
    ------
    FileNotFoundError
        If the folder is missing.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}: create it, then report again")
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(scratch, 0o644)  # mkstemp lets only the owner read
        put_in_place(scratch, str(target))
    except BaseException:
        os.unlink(scratch)
        raise


def _fields(operator: Operator) -> dict[str, Any]:
    cost = operator.cost
    return {
        "id": operator.number, "name": operator.name, "form": operator.form,
        "inputs": list(operator.inputs), "loops": list(operator.loops), "time": cost.seconds,
        "rows_in": cost.rows_in, "touched": cost.rows_read, "rows_out": cost.rows_out,
        "kept": operator.rows, "bytes": operator.bytes, "codes": operator.codes,
        "ran": cost.where, "back": operator.feedback,
    }


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Dataflow</title><style>
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--line:#8a929c;--box:#f0f2f4;
 --round:#dfe8f5;--heat:210,70,20}
@media(prefers-color-scheme:dark){:root{--text:#e6e9ed;--back:#14171b;--line:#7c8591;--box:#242a31;
 --round:#1d3048}}
body{font:14px system-ui,sans-serif;color:var(--text);background:var(--back);margin:1.5em}
#graph{overflow:auto}text{fill:var(--text);font-size:12px}path{stroke:var(--line);fill:none}
path.back{stroke-dasharray:4 4}#head path{fill:var(--line)}
rect{stroke:var(--line);fill:var(--box)}rect.round{fill:var(--round)}
rect.heat{stroke:none;fill:rgb(var(--heat))}
g.loop{cursor:pointer}g.loop rect{stroke-width:2;stroke-dasharray:5 3}
table{border-collapse:collapse;margin-top:1em}td,th{padding:3px 10px;text-align:right}
td:first-child,th:first-child{text-align:left}tr{border-bottom:1px solid var(--line)}
label{margin-right:1.5em}</style></head><body><h1>Dataflow</h1>
<label>Step <select id="step"></select></label>
<label>Show <select id="mode"><option value="time">time</option><option value="rows">rows</option>
<option value="blowup">blow-up</option><option value="memory">memory</option></select></label>
<span id="loops"></span>
<p>An arrow shows updates from one operator to the next, a dashed arrow the feedback of a loop.
Blue operators are in a loop. The redder an operator, the greater its share.</p>
<div id="graph"></div><h2>Ten most expensive operators</h2><table id="top"></table>
<script>
const steps=@STEPS@,closed=new Set(),get=i=>document.getElementById(i);
const value={time:o=>o.time,rows:o=>o.rows_in+o.touched,
 blowup:o=>o.rows_in?o.rows_out/o.rows_in:0,memory:o=>o.bytes};
const number=n=>n.toLocaleString("en",{maximumFractionDigits:2});
const shown={time:o=>number(o.time*1e3)+" ms",rows:o=>number(o.rows_in+o.touched)+" rows",
 blowup:o=>o.rows_in?number(o.rows_out/o.rows_in)+" x":"-",
 memory:o=>number(o.kept)+" rows, "+number(o.bytes)+" B"};
function add(to,tag,set,text){const e=tag=="td"||tag=="th"||tag=="tr"||tag=="option"||tag=="button"
 ?document.createElement(tag):document.createElementNS("http://www.w3.org/2000/svg",tag);
 for(const k in set)e.setAttribute(k,set[k]);if(text!==undefined)e.textContent=text;
 to.appendChild(e);return e}
function merged(ops){ // a loop that is closed is one box with the sums of its operators
 const at={},boxes=new Map();
 for(const o of ops){const i=o.loops.findIndex((_,n)=>closed.has(o.loops.slice(0,n+1).join("/")));
  const key=i<0?o.id:"loop "+o.loops.slice(0,i+1).join("/");at[o.id]=key;
  if(i<0){boxes.set(key,{...o,key});continue}
  let b=boxes.get(key);if(!b){b={key,name:o.loops[i],loop:o.loops.slice(0,i+1).join("/"),
   form:"loop",inputs:[],time:0,rows_in:0,touched:0,rows_out:0,kept:0,bytes:0};boxes.set(key,b)}
  b.inputs.push(...o.inputs);
  for(const f of["time","rows_in","touched","rows_out","kept","bytes"])b[f]+=o[f]}
 for(const b of boxes.values())
  {b.inputs=[...new Set(b.inputs.map(i=>at[i]))].filter(k=>k!==undefined&&k!==b.key);
  b.back=b.loop?undefined:at[b.back]}
 return [...boxes.values()]}
function draw(){const step=steps[get("step").value],mode=get("mode").value;
 get("graph").textContent="";get("top").textContent="";get("loops").textContent="";
 const loops=new Set(step.operators.flatMap(o=>o.loops.map((_,n)=>o.loops.slice(0,n+1).join("/"))));
 for(const l of loops)add(get("loops"),"button",{},(closed.has(l)?"expand ":"collapse ")+l)
  .onclick=()=>{closed.has(l)?closed.delete(l):closed.add(l);draw()};
 const boxes=merged(step.operators),place=new Map(),wide=[];
 for(const b of boxes){const y=1+Math.max(-1,...b.inputs.map(k=>place.has(k)?place.get(k).y:-1));
  const x=wide[y]=(wide[y]??-1)+1;place.set(b.key,{x,y})}
 const W=190,H=46,X=220,Y=84,most=Math.max(1e-12,...boxes.map(value[mode]));
 const w=X*Math.max(1,...wide.map(n=>n+1))+30,h=Y*Math.max(1,wide.length);
 const svg=add(get("graph"),"svg",{width:w,height:h,viewBox:`0 0 ${w} ${h}`});
 add(add(svg,"marker",{id:"head",viewBox:"0 0 8 8",refX:7,refY:4,markerWidth:8,markerHeight:8,
  orient:"auto"}),"path",{d:"M0,0L8,4L0,8z",stroke:"none"});
 for(const b of boxes)for(const k of b.inputs){const s=place.get(k),t=place.get(b.key);
  const a=s.x*X+W/2+4,c=s.y*Y+H+4,d=t.x*X+W/2+4,e=t.y*Y+4;
  add(svg,"path",{d:`M${a},${c}C${a},${c+24} ${d},${e-24} ${d},${e}`,"marker-end":"url(#head)"});}
 for(const b of boxes)if(b.back!==undefined){ // what comes round: from its end to its variable
  const s=place.get(b.back),t=place.get(b.key),a=s.x*X+W+4,c=s.y*Y+H/2+4,d=t.x*X+W+4,e=t.y*Y+H/2+4;
  add(svg,"path",{class:"back",d:`M${a},${c}C${a+30},${c} ${d+30},${e} ${d},${e}`,
   "marker-end":"url(#head)"})}
 for(const b of boxes){const p=place.get(b.key),g=add(svg,"g",{class:b.loop?"loop":b.form,
  transform:`translate(${p.x*X+4},${p.y*Y+4})`});
  add(g,"title",{},`${b.name}: ${shown.time(b)}, in ${b.rows_in}, out ${b.rows_out}`);
  add(g,"rect",{class:b.loop||b.loops.length?"round":"",width:W,height:H,rx:5});
  add(g,"rect",{class:"heat",width:W,height:H,rx:5,opacity:.6*value[mode](b)/most});
  add(g,"text",{x:8,y:18},b.name.length>26?b.name.slice(0,25)+"\\u2026":b.name);
  add(g,"text",{x:8,y:36},shown[mode](b));
  if(b.loop)g.onclick=()=>{closed.delete(b.loop);draw()}}
 const line=(tag,cells)=>{const r=add(get("top"),"tr",{});for(const c of cells)add(r,tag,{},c)};
 line("th",["operator","ms","in","touched","out","kept rows","bytes","reason","ran"]);
 for(const o of [...step.operators].sort((a,b)=>value[mode](b)-value[mode](a)).slice(0,10))
  line("td",[o.name,number(o.time*1e3),number(o.rows_in),number(o.touched),number(o.rows_out),
   number(o.kept),number(o.bytes),o.codes,o.ran])}
steps.forEach((s,i)=>add(get("step"),"option",{value:i},
 s.step?`${s.step} (${number(s.seconds*1e3)} ms)`
 :"none yet"));
get("step").value=steps.length-1;get("step").onchange=get("mode").onchange=draw;draw();
</script></body></html>
"""
