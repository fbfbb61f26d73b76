// Adds to a page that is complete without it: sorting, filters, read-outs, zoom. No network, no state.
(() => {
  "use strict";
  const FILTER_FROM_ROWS = 8;
  const NARROW_PX = 34;

  // ---- tables -------------------------------------------------------------------------
  const value = (row, index) => {
    const cell = row.cells[index];
    const raw = cell.dataset.v;
    return raw === undefined ? cell.textContent.trim().toLowerCase() : Number(raw);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));

  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, index) => {
      if (!head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const first = head.classList.contains("number") || head.classList.contains("share") ? "descending" : "ascending";
        const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        const sign = order === "ascending" ? 1 : -1;
        const rows = [...body.rows].map((row) => [value(row, index), row]);
        rows.sort((a, b) => sign * compare(a[0], b[0]));
        body.append(...rows.map((pair) => pair[1]));
      });
    });
    if (body.rows.length >= FILTER_FROM_ROWS && table.caption) {
      const field = document.createElement("input");
      field.type = "search";
      field.className = "filter";
      field.placeholder = "filter rows";
      field.setAttribute("aria-label", "filter rows of: " + table.caption.textContent);
      field.addEventListener("input", () => {
        const wanted = field.value.toLowerCase();
        for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
      });
      table.caption.append(field);
    }
  }

  // ---- charts ----------------------------------------------------------------------------
  const human = (bytes) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(bytes) >= 1024 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
    return bytes.toFixed(unit === 0 || bytes >= 100 ? 0 : 1) + " " + units[unit];
  };
  const lastAtOrBefore = (times, time) => {
    let low = -1, high = times.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (times[middle] <= time) low = middle; else high = middle - 1;
    }
    return low;
  };

  for (const svg of document.querySelectorAll("svg[data-series]")) {
    const series = JSON.parse(svg.dataset.series);
    const end = Number(svg.dataset.end);
    const isBytes = svg.dataset.unit === "bytes";
    const readout = svg.closest("figure").querySelector(".readout");
    const resting = readout.textContent;
    const cursor = svg.querySelector(".cursor");
    const moments = [...new Set(series.flatMap((one) => one.t))].sort((a, b) => a - b);
    let at = 0;
    const show = (time) => {
      const parts = [];
      for (const one of series) {
        const index = lastAtOrBefore(one.t, time);
        if (index < 0 || time > (one.end ?? end) || (!isBytes && one.v[index] === 0)) continue;
        parts.push(one.name + " " + (isBytes ? human(one.v[index]) : one.v[index].toLocaleString("en")));
      }
      const x = (100 * time / end).toFixed(3) + "%";
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.removeAttribute("visibility");
      readout.textContent = "at " + time.toFixed(end < 0.1 ? 6 : end < 10 ? 3 : 1) + " s: " + (parts.join(", ") || "nothing");
    };
    const rest = () => {
      cursor.setAttribute("visibility", "hidden");
      readout.textContent = resting;
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      at = Math.max(0, lastAtOrBefore(moments, share * end));
      show(share * end);
    });
    svg.addEventListener("pointerleave", rest);
    svg.addEventListener("blur", rest);
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !moments.length) return;
      event.preventDefault();
      at = Math.min(moments.length - 1, Math.max(0, at + step));
      show(moments[at]);
    });
  }

  // ---- charts whose read-outs are ready: [[place in percent, text], …] ----------------------------
  for (const svg of document.querySelectorAll("svg[data-points]")) {
    const points = JSON.parse(svg.dataset.points);
    const readout = svg.closest("figure").querySelector(".readout");
    const resting = readout.textContent;
    const cursor = svg.querySelector(".cursor");
    let at = -1;
    const show = (index) => {
      at = index;
      const x = points[at][0] + "%";
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.removeAttribute("visibility");
      readout.textContent = points[at][1];
    };
    const rest = () => {
      cursor.setAttribute("visibility", "hidden");
      readout.textContent = resting;
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = 100 * (event.clientX - box.left) / box.width;
      let nearest = 0;
      points.forEach((point, index) => {
        if (Math.abs(point[0] - x) < Math.abs(points[nearest][0] - x)) nearest = index;
      });
      show(nearest);
    });
    svg.addEventListener("pointerleave", rest);
    svg.addEventListener("blur", rest);
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      show(Math.min(points.length - 1, Math.max(0, at + step)));
    });
  }

  // ---- heat maps: a letter a cell, a row of letters for each range of addresses -------------------
  for (const svg of document.querySelectorAll("svg[data-cells]")) {
    const figure = svg.closest("figure");
    const readout = figure.querySelector(".readout");
    const rows = svg.dataset.cells.split(" ");
    const bases = figure.dataset.rows.split(",");
    const levels = JSON.parse(svg.dataset.levels), tops = JSON.parse(svg.dataset.tops);
    const rowBytes = Number(figure.dataset.rowBytes), part = Number(figure.dataset.part);
    const columns = rows[0].length;
    const chosen = svg.querySelector(".chosen");
    let row = 0, column = -1;
    const show = () => {
      chosen.setAttribute("x", (100 * column / columns).toFixed(4) + "%");
      chosen.setAttribute("y", tops[row]);
      chosen.removeAttribute("visibility");
      const letter = rows[row][column];
      const digits = part < 0.0001 ? 6 : part < 0.01 ? 4 : 2;
      readout.textContent = "0x" + bases[row] + " and " + human(rowBytes) + " on, " + (column * part).toFixed(digits) + " to "
        + ((column + 1) * part).toFixed(digits) + " s: " + (letter === "." ? "nothing" : levels[Number(letter)]);
    };
    const rest = () => {
      chosen.setAttribute("visibility", "hidden");
      readout.textContent = "";
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      column = Math.min(columns - 1, Math.max(0, Math.floor(columns * (event.clientX - box.left) / box.width)));
      row = Math.max(0, lastAtOrBefore(tops, event.clientY - box.top));
      show();
    });
    svg.addEventListener("pointerleave", rest);
    svg.addEventListener("blur", rest);
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!step) return;
      event.preventDefault();
      row = Math.min(rows.length - 1, Math.max(0, row + step[0]));
      column = Math.min(columns - 1, Math.max(0, column + step[1]));
      show();
    });
  }

  // ---- call stacks: read-out, and a click makes a frame as wide as the page ---------------------
  for (const svg of document.querySelectorAll("svg.icicle")) {
    const readout = svg.closest("figure").querySelector(".readout");
    const resting = readout.textContent;
    const frames = [...svg.querySelectorAll("g[data-x]")].map((group) => ({
      group,
      left: Number(group.dataset.x),
      width: Number(group.dataset.w),
      boxes: group.querySelectorAll("rect, svg"),
      text: group.querySelector("title").textContent,
    }));
    let left = 0, width = 100;
    const draw = () => {
      const pixels = svg.getBoundingClientRect().width / 100;
      for (const frame of frames) {
        const from = Math.max(0, (frame.left - left) * 100 / width);
        const to = Math.min(100, (frame.left + frame.width - left) * 100 / width);
        const shown = to - from > 1e-6;
        frame.group.style.display = shown ? "" : "none";
        if (!shown) continue;
        for (const box of frame.boxes) {
          box.setAttribute("x", from.toFixed(4) + "%");
          box.setAttribute("width", (to - from).toFixed(4) + "%");
        }
        frame.group.classList.toggle("narrow", (to - from) * pixels < NARROW_PX);
      }
    };
    for (const frame of frames) {
      const zoom = () => { left = frame.left; width = frame.width; draw(); };
      frame.group.setAttribute("tabindex", "0");
      frame.group.setAttribute("role", "button");
      frame.group.addEventListener("click", zoom);
      frame.group.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        zoom();
      });
      for (const name of ["pointerenter", "focus"])
        frame.group.addEventListener(name, () => { readout.textContent = frame.text; });
      for (const name of ["pointerleave", "blur"])
        frame.group.addEventListener(name, () => { readout.textContent = resting; });
    }
    window.addEventListener("resize", draw);
    svg.closest("details")?.addEventListener("toggle", draw); // folded, it had no width
    draw();
  }

  // ---- paper has no clicks: open what is folded -------------------------------------------------
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));

  document.documentElement.dataset.ready = "1";
})();
