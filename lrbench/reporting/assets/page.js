"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const plots = new Map(charts.map((chart) => [chart.name, chart]));
  const hidden = new Set(); // models that are shown in no chart
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;

  // --- charts: drawn when they come into view, redrawn in the colours of the page

  const ink = (colour, isDark) => (isDark && colour === "#000000" ? "#f2f2f2" : colour);

  function themed(chart, narrow) {
    const isDark = dark.matches && !printing;
    const text = isDark ? "#e8e8e8" : "#1a1a1a";
    const grid = isDark ? "#3a3f45" : "#e2e2e2";
    const axis = (own) => ({ ...own, gridcolor: grid, linecolor: grid, zerolinecolor: grid });
    return {
      data: chart.data.map((trace) => ({
        ...trace,
        visible: hidden.has(trace.meta) ? "legendonly" : true,
        ...Object.fromEntries(["line", "marker", "error_y"].filter((part) => trace[part]).map(
          (part) => [part, { ...trace[part], ...(trace[part].color && { color: ink(trace[part].color, isDark) }) }])),
        ...(isDark && trace.fillcolor === "rgba(0,0,0,0.15)" && { fillcolor: "rgba(242,242,242,0.18)" }),
      })),
      layout: {
        ...chart.layout,
        xaxis: axis(chart.layout.xaxis),
        yaxis: axis(chart.layout.yaxis),
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { color: text, size: 12 },
        margin: { l: 56, r: 24, t: 12, b: 48 },
        legend: { orientation: "h", y: narrow ? -0.28 : -0.18, itemdoubleclick: false },
        hoverlabel: { align: "left" },
      },
    };
  }

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    const { data, layout } = themed(plots.get(figure.id), plot.clientWidth < 480);
    const first = !figure.dataset.drawn;
    figure.dataset.drawn = "yes";
    Plotly.react(plot, data, layout, { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] });
    if (first) {
      plot.on("plotly_legendclick", (event) => {
        const model = event.data[event.curveNumber].meta;
        if (model !== undefined) toggle(model, hidden.has(model));
        return false;
      });
    }
  }

  const drawn = () => all(".chart").filter((figure) => figure.dataset.drawn && !figure.hidden);
  const redraw = () => drawn().forEach(draw);

  function toggle(model, visible) {
    if (visible) hidden.delete(model);
    else hidden.add(model);
    all(".models input").forEach((box) => { box.checked = !hidden.has(box.value); });
    redraw();
  }

  if (charts.length) {
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
      }
    }, { rootMargin: "200px" });
    all(".chart").forEach((figure) => seen.observe(figure));
    dark.addEventListener("change", redraw);
    addEventListener("beforeprint", () => { printing = true; all(".chart").filter((f) => !f.hidden).forEach(draw); });
    addEventListener("afterprint", () => { printing = false; redraw(); });
  }

  all(".models").forEach((panel) => {
    panel.hidden = false;
    panel.addEventListener("change", (event) => toggle(event.target.value, event.target.checked));
    all("[data-all]", panel).forEach((button) => button.addEventListener("click", () => {
      all("input", panel).forEach((box) => {
        if (button.dataset.all === "true") hidden.delete(box.value);
        else hidden.add(box.value);
        box.checked = button.dataset.all === "true";
      });
      redraw();
    }));
  });

  // of many charts one is shown at a time
  all(".choose").forEach((line) => {
    line.hidden = false;
    const figures = all(".chart", line.parentElement);
    const choose = (name) => figures.forEach((figure) => {
      figure.hidden = figure.id !== name;
      if (!figure.hidden && figure.dataset.drawn) draw(figure); // models may have come and gone meanwhile
    });
    const select = line.querySelector("select");
    select.addEventListener("change", () => choose(select.value));
    choose(select.value);
  });

  // --- tables: sorted by a column within their bodies, filtered by words, copied as they are seen

  const rowsOf = (body) => all("tr:not(.title)", body);
  const valueOf = (cell) => {
    const text = cell.textContent.trim();
    const number = cell.dataset.value === undefined ? Number(text.replaceAll(",", "")) : Number(cell.dataset.value);
    return text === "–" || text === "" ? null : Number.isNaN(number) ? text : number;
  };

  function compare(one, other) {
    if (one === null || other === null) return (one === null) - (other === null); // gaps last, either way
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (typeof one === "number") return -1;
    if (typeof other === "number") return 1;
    return one.localeCompare(other);
  }

  function sort(table, place, header) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    all("thead th", table).forEach((each) => each.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    for (const body of table.tBodies) {
      const rows = rowsOf(body).map((row) => [valueOf(row.cells[place]), row]);
      rows.sort(([one], [other]) => (one === null || other === null || !descending ? compare(one, other) : compare(other, one)));
      body.append(...rows.map(([, row]) => row));
    }
  }

  function filter(table, text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    for (const body of table.tBodies) {
      for (const row of rowsOf(body)) {
        const found = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => found.includes(word));
      }
    }
  }

  const latex = JSON.parse(document.getElementById("latex").textContent);
  const tex = (text) => [...text].map((sign) => latex[sign] ?? sign).join("");
  const markdown = (text) => text.replace(/[\\`*_|[\]#]/g, "\\$&").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const csv = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  const writers = {
    markdown: (head, rows) => [
      `| ${head.map(markdown).join(" | ")} |`,
      `| ${head.map(() => "---").join(" | ")} |`,
      ...rows.map((row) => `| ${row.map(markdown).join(" | ")} |`),
    ],
    latex: (head, rows) => [
      `\\begin{tabular}{${"l".repeat(head.length)}}`,
      "\\toprule",
      `${head.map(tex).join(" & ")} \\\\`,
      "\\midrule",
      ...rows.map((row) => `${row.map(tex).join(" & ")} \\\\`),
      "\\bottomrule",
      "\\end{tabular}",
    ],
    csv: (head, rows) => [head, ...rows].map((row) => row.map(csv).join(",")),
  };

  function asText(table, form) {
    const texts = (cells) => [...cells].map((cell) => cell.textContent.trim().replace(/\s+/g, " "));
    const rows = all("tbody tr:not(.title)", table).filter((row) => !row.hidden).map((row) => texts(row.cells));
    return `${writers[form](texts(table.tHead.rows[0].cells), rows).join("\n")}\n`;
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // from disk some browsers have no clipboard for scripts
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  all("figure.table").forEach((figure) => {
    const table = figure.querySelector("table");
    const said = figure.querySelector(".said");
    figure.querySelector(".tools").hidden = false;
    all("thead th", table).forEach((header, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent;
      button.addEventListener("click", () => sort(table, place, header));
      header.replaceChildren(button);
    });
    figure.querySelector("input").addEventListener("input", (event) => filter(table, event.target.value));
    all("[data-copy]", figure).forEach((button) => button.addEventListener("click", async () => {
      await copy(asText(table, button.dataset.copy));
      said.textContent = `copied as ${button.textContent}`;
      setTimeout(() => { said.textContent = ""; }, 3000);
    }));
  });
})();
