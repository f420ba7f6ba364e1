// Behaviour of a report: switches the theme, draws the charts and steps through transfers. Works from file://.
(() => {
  "use strict";
  const root = document.documentElement;
  const charts = [];

  // Theme: the system's until the button is pressed.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const button = document.getElementById("theme");
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  });
  dark.addEventListener("change", () => { name(); redraw(); });
  name();

  // Timelines: point at a row, or step with the arrow keys.
  for (const box of document.querySelectorAll(".timeline-box")) {
    const rows = [...box.querySelectorAll(".row")];
    const output = box.parentElement.querySelector("output");
    let at = -1;
    const show = (i) => {
      if (at >= 0) rows[at].classList.remove("on");
      at = i;
      rows[at].classList.add("on");
      output.textContent = rows[at].dataset.readout;
      output.className = "live";
    };
    rows.forEach((row, i) => row.addEventListener("pointerenter", () => show(i)));
    box.addEventListener("keydown", (event) => {
      const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowLeft: at - 1, Home: 0, End: rows.length - 1 }[event.key];
      if (to === undefined || !rows.length) return;
      event.preventDefault();
      show(Math.min(Math.max(to, 0), rows.length - 1));
    });
  }

  // XY charts.
  const probe = document.createElement("span");
  document.body.append(probe);
  probe.hidden = true;
  const colour = (token) => {
    probe.style.color = `var(--${token})`;
    return getComputedStyle(probe).color;
  };
  const short = (v) => (v === null || v === undefined ? "–" : String(Number(v.toPrecision(5))).replace("-", "−"));

  // Large numbers beside a tick: 10k, 2M.
  const tick = (v) => {
    const [size, prefix] = [[1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([least]) => Math.abs(v) >= Math.max(least, 1e4)) ?? [1, ""];
    return short(v / size) + prefix;
  };

  // Ticks of a logarithmic axis: 1, 2, 5 of every decade where they fit, else whole decades.
  const logSplits = (values) => (u, axis, low, high) => {
    const all = [];
    const room = (axis === 0 ? u.width - 70 : 2 * u.height - 80) / Math.log10(high / low);
    // At most eight values are ticks themselves, unless their labels would touch.
    const near = values.slice(1).some((v, i) => room * Math.log10(v / values[i]) < 44);
    if (axis === 0 && values.length > 1 && values.length <= 8 && !near) return values;
    const steps = room > 110 ? [1, 2, 5] : [1];
    for (let e = Math.floor(Math.log10(low)) - 1; e <= Math.log10(high) + 1; e++) {
      for (const m of steps) all.push(Number(`${m}e${e}`));
    }
    return all.filter((v) => v >= low * 0.999 && v <= high * 1.001);
  };

  // Steps between the ticks of an axis of whole numbers.
  const whole = [0, 1, 2, 3, 4, 5, 6].flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e));

  function build(entry) {
    const { spec, box, output } = entry;
    const text = colour("text"), muted = colour("muted"), line = colour("line"), ground = colour("bg");
    const font = '13px system-ui, -apple-system, "Segoe UI", sans-serif';
    const axis = (label, log) => ({
      label, labelSize: 24, labelFont: font, font, stroke: muted, labelGap: 0, size: label === spec.ylabel ? 56 : 32,
      grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 5 },
      values: (u, all) => all.map((v) => (v === null ? null : tick(v))),
      ...(log ? { splits: logSplits(spec.x), filter: (u, all) => all } : {}),
      ...(spec.xwhole && label === spec.xlabel ? { incrs: whole } : {}),
    });
    // Returns whether a line of the chart crosses a box of the canvas.
    const covers = (u, x0, x1, y0, y1) => spec.lines.some((s) => {
      const at = spec.x.map((x, i) => [u.valToPos(x, "x", true), s.values[i]]).filter(([, v]) => v !== null)
        .map(([x, v]) => [x, u.valToPos(v, "y", true)]);
      return at.some(([ax, ay], i) => {
        const [bx, by] = at[i + 1] || [ax, ay];
        for (let t = 0; t <= 1; t += 0.02) {
          const x = ax + t * (bx - ax), y = ay + t * (by - ay);
          if (x >= x0 && x <= x1 && y >= y0 && y <= y1) return true;
        }
        return false;
      });
    });
    const marks = (u) => {
      const c = u.ctx, k = uPlot.pxRatio, { left, top, width, height } = u.bbox;
      c.save();
      c.font = `${13 * k}px system-ui, -apple-system, "Segoe UI", sans-serif`;
      c.lineWidth = 1.4 * k;
      const label = (words, x, y, align, ink) => {
        c.textAlign = align;
        c.lineWidth = 4 * k; c.strokeStyle = ground; c.lineJoin = "round"; c.setLineDash([]);
        c.strokeText(words, x, y);
        c.fillStyle = ink; c.fillText(words, x, y);
        c.lineWidth = 1.4 * k;
      };
      for (const mark of spec.marks || []) {
        const ink = colour(mark.token || "muted");
        c.strokeStyle = ink;
        c.setLineDash([5 * k, 4 * k]);
        c.beginPath();
        if (mark.x !== undefined) {
          const x = Math.round(u.valToPos(mark.x, "x", true));
          c.moveTo(x, top); c.lineTo(x, top + height); c.stroke();
          const right = x > left + width * 0.7;
          if (mark.label) label(mark.label, x + (right ? -6 : 6) * k, top + 13 * k, right ? "right" : "left", ink);
        } else {
          const y = Math.round(u.valToPos(mark.y, "y", true));
          c.moveTo(left, y); c.lineTo(left + width, y); c.stroke();
          // The label is below the line at its right end, or at the next of four places where it covers no data.
          const wide = mark.label ? c.measureText(mark.label).width + 8 * k : 0;
          const places = [[true, true], [true, false], [false, true], [false, false]];
          const isFree = ([right, below]) => {
            const from = right ? left + width - 6 * k - wide : left + 6 * k;
            return !covers(u, from, from + wide, below ? y + 2 * k : y - 19 * k, below ? y + 19 * k : y - 2 * k);
          };
          const [right, below] = places.find(isFree) || places[0];
          const x = right ? left + width - 6 * k : left + 6 * k;
          if (mark.label) label(mark.label, x, below ? y + 15 * k : y - 6 * k, right ? "right" : "left", ink);
        }
      }
      for (const dot of spec.dots || []) {
        c.setLineDash([]);
        c.beginPath();
        c.arc(u.valToPos(dot.x, "x", true), u.valToPos(dot.y, "y", true), 5.5 * k, 0, 7);
        c.fillStyle = ground; c.fill();
        c.lineWidth = 2.6 * k; c.strokeStyle = text; c.stroke();
      }
      c.restore();
    };
    const steps = uPlot.paths.stepped({ align: 1 });
    const [low, high] = spec.xrange;
    return new uPlot({
      width: box.clientWidth || 600, height: box.clientHeight || 300,
      legend: { show: false }, cursor: { y: false, drag: { x: false, y: false }, points: { size: 8 } },
      scales: {
        x: { time: false, distr: spec.xlog ? 3 : 1, range: () => [low, high] },
        y: { distr: spec.ylog ? 3 : 1, range: () => spec.yrange },
      },
      axes: [axis(spec.xlabel, spec.xlog), axis(spec.ylabel, spec.ylog)],
      bands: spec.band ? [{ series: spec.band, fill: colour("slack") }] : [],
      series: [{}, ...spec.lines.map((s) => ({
        label: s.name, stroke: colour(s.token), width: s.width, dash: s.dash || undefined, spanGaps: false,
        fill: s.fill ? colour(s.fill) : undefined,
        paths: spec.stepped ? steps : undefined,
        points: { show: !spec.stepped && spec.x.length <= 24, size: s.width + 4, fill: colour(s.token), stroke: colour(s.token) },
      }))],
      hooks: {
        draw: [marks],
        setCursor: [(u) => {
          const i = u.cursor.idx;
          if (i === null || i === undefined) return;
          const values = spec.lines.map((s) => `${s.name} ${short(s.values[i])}${spec.unit ? " " + spec.unit : ""}`);
          output.className = "live";
          output.textContent = `${spec.xname} ${short(spec.x[i])}${spec.xunit ? " " + spec.xunit : ""}: ${values.join(" · ")}`;
        }],
      },
    }, [spec.x, ...spec.lines.map((s) => s.values)], box);
  }

  function redraw() {
    for (const entry of charts) {
      if (entry.plot) entry.plot.destroy();
      entry.plot = build(entry);
    }
  }

  for (const data of document.querySelectorAll("script[data-chart]")) {
    const chart = data.parentElement;
    const entry = { spec: JSON.parse(data.textContent), box: chart.querySelector(".plot"), output: chart.querySelector("output") };
    let at = -1;
    entry.box.addEventListener("keydown", (event) => {
      const n = entry.spec.x.length;
      const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: n - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      at = Math.min(Math.max(to, 0), n - 1);
      const u = entry.plot;
      u.setCursor({ left: u.valToPos(entry.spec.x[at], "x"), top: 10 });
    });
    charts.push(entry);
  }
  redraw();
  if (window.ResizeObserver) {
    const seen = new ResizeObserver((items) => {
      for (const item of items) {
        const entry = charts.find((c) => c.box === item.target);
        const width = Math.floor(item.contentRect.width);
        if (entry.plot && width > 0 && width !== entry.plot.width) entry.plot.setSize({ width, height: entry.plot.height });
      }
    });
    for (const entry of charts) seen.observe(entry.box);
  }

  // The text of a piece of a bar is shortened or removed where it does not fit: part of a number is another number.
  for (const piece of document.querySelectorAll(".bars [data-short]")) {
    const whole = piece.textContent;
    const fit = () => {
      for (const text of [whole, piece.dataset.short, ""]) {
        piece.textContent = text;
        if (piece.scrollWidth <= piece.clientWidth) break;
      }
    };
    if (window.ResizeObserver) new ResizeObserver(fit).observe(piece.parentElement);
    fit();
  }

  // The names of lanes and the values of a vertical axis stay on screen while a drawing scrolls: a copy of the texts
  // left of the plot lies over them.
  for (const box of document.querySelectorAll(".timeline-box")) {
    const svg = box.querySelector("svg");
    if (!svg) continue;
    const texts = [...svg.querySelectorAll("text")], at = (x) => Number(x.getAttribute("x"));
    const ends = texts.filter((x) => x.getAttribute("text-anchor") === "end").map(at).filter((x) => x < 160);
    const wide = Math.max(0, ...ends) + 6;
    const names = ends.length ? texts.filter((x) => at(x) < wide) : [];
    const pinned = document.createElementNS(svg.namespaceURI, "svg");
    pinned.classList.add("pinned");
    pinned.setAttribute("aria-hidden", "true");
    const ground = document.createElementNS(svg.namespaceURI, "rect");
    ground.setAttribute("width", "100%");
    ground.setAttribute("height", "100%");
    pinned.append(ground, ...names.map((x) => {
      const copy = x.cloneNode(true);
      copy.classList.toggle("dense", getComputedStyle(x).fontSize === "11px");
      return copy;
    }));
    const fit = () => {
      const { width, height } = svg.getBoundingClientRect();
      const shown = width > box.clientWidth + 1;
      if (!shown) return pinned.remove();
      const scale = width / svg.viewBox.baseVal.width;
      pinned.setAttribute("viewBox", `0 0 ${wide} ${svg.viewBox.baseVal.height}`);
      pinned.style.cssText = `width:${wide * scale}px;height:${height}px;margin-right:${-wide * scale}px`;
      if (!pinned.isConnected) box.prepend(pinned);
    };
    if (names.length && window.ResizeObserver) new ResizeObserver(fit).observe(box);
    if (names.length) fit();
  }

  // A box that is wider than the page has a hint above it, and fades out on the right until its end is reached.
  for (const box of document.querySelectorAll(".table, .scroll, pre")) {
    const hint = document.createElement("p");
    hint.className = "more";
    hint.textContent = "scroll sideways for more →";
    hint.setAttribute("aria-hidden", "true");
    hint.hidden = true;
    box.before(hint);
    const show = () => {
      hint.hidden = box.scrollWidth <= box.clientWidth + 1;
      box.classList.toggle("more-right", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
    };
    box.addEventListener("scroll", show, { passive: true });
    if (window.ResizeObserver) new ResizeObserver(show).observe(box);
    show();
  }

  // Prints are light. Canvases do not follow the theme, so they are drawn again before and after printing.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; redraw(); });
  addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme; else root.dataset.theme = before;
    redraw();
  });
})();
