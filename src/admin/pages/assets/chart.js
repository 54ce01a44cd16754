// Puts a chart in the place of each drawing, with the values under the pointer, a legend whose entries hide lines, and
// zoom: drag to zoom in, double-click for the whole. Without it the drawings stay.
"use strict";

const plots = new Map(); // by the id of the element

const property = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const number = (value) => value === null || value === undefined ? "–" : String(Math.round(value * 100) / 100);
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
const utc = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);

function colorOf(line) {
    const probe = document.createElement("i");
    probe.className = "line-" + line;
    document.body.append(probe);
    const color = getComputedStyle(probe).backgroundColor;
    probe.remove();
    return color;
}

function options(element, lines) {
    const axis = {
        stroke: property("--muted"),
        grid: { stroke: property("--line"), width: 1 },
        ticks: { stroke: property("--line"), width: 1 },
    };
    const tick = (seconds, step) => step >= 86400 ? utc(seconds).slice(5, 10) : utc(seconds).slice(11, step < 60 ? 19 : 16);
    return {
        width: element.clientWidth,
        height: 260,
        padding: [12, 24, 0, 0],
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
        scales: { y: { range: (plot, min, max) => [0, Math.max(max * 1.05, 1)] } },
        axes: [
            { ...axis, space: 70, values: (plot, ticks, at, space, step) => ticks.map((seconds) => tick(seconds, step)) },
            { ...axis, size: 56, values: (plot, ticks) => ticks.map((value) => short.format(value)) },
        ],
        series: [{ label: "Time (UTC)", value: (plot, seconds) => seconds ? utc(seconds) : "–" }].concat(lines.map((line) => {
            const stroke = colorOf(line.color);
            const fill = stroke.replace("rgb(", "rgba(").replace(")", ", 0.08)");
            return { label: line.name, stroke, fill, width: 2, value: (plot, value) => number(value) };
        })),
    };
}

function mount(element) {
    const { x, lines } = JSON.parse(element.dataset.chart);
    if (x.length < 2) {
        return; // nothing to see yet
    }
    const data = [x, ...lines.map((line) => line.y)];
    const names = lines.map((line) => line.name).join("\n");
    let known = plots.get(element.id);
    if (known && known.names === names) {
        const { min, max } = known.plot.scales.x;
        const before = known.plot.data[0];
        const isWhole = min <= before[0] && max >= before[before.length - 1];
        element.replaceChildren(known.plot.root);
        known.plot.setData(data, isWhole);
    } else {
        known?.plot.destroy();
        element.replaceChildren();
        known = { names, plot: new uPlot(options(element, lines), data, element) };
        plots.set(element.id, known);
    }
    element.parentElement.querySelector(".legend")?.remove(); // the chart has its own
    new ResizeObserver(() => known.plot.setSize({ width: element.clientWidth, height: 260 })).observe(element);
}

function mountAll() {
    document.querySelectorAll("[data-chart]").forEach(mount);
}

mountAll();
document.addEventListener("refreshed", mountAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    plots.forEach(({ plot }) => plot.destroy());
    plots.clear();
    mountAll();
});
