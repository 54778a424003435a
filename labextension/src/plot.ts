// One chart on a canvas, by uPlot: made when it comes into sight, given new data while it is there, and drawn with the
// colours of JupyterLab's theme.

import { TranslationBundle } from '@jupyterlab/translation';
import uPlot from 'uplot';
import { columnsOf, Drawing, pointText, rangeOf } from './curves';
import { axisText } from './format';

export interface PlotOptions {
  trans: TranslationBundle;
  log: boolean;
  /** What is pointed at, in words; "": nothing. */
  hover: (text: string) => void;
  /** Whether a part of x is shown. */
  zoom: (zoomed: boolean) => void;
}

const COUNTS = [1, 2, 5];
/** Distances between whole numbers on an axis; of bytes they are powers of two. */
const WHOLE = Array.from({ length: 15 }, (_, power) => COUNTS.map(one => one * 10 ** power)).flat();
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const TICK = 6;
/** More lines than these would hide the curve. */
const LINES = 12;
const FONT = 11;

export class Plot {
  constructor(
    private readonly _host: HTMLElement,
    private readonly _options: PlotOptions
  ) {
    this._size.observe(_host);
    this._sight.observe(_host);
    this._theme.observe(document.body, { attributeFilter: ['data-jp-theme-name'] });
    document.addEventListener('visibilitychange', this._draw);
  }

  show(drawing: Drawing): void {
    this._drawing = drawing;
    this._draw();
  }

  /** All of x again. */
  reset(): void {
    const xs = this._columns[0];
    this._plot?.setScale('x', { min: xs[0]!, max: xs[xs.length - 1]! });
  }

  /** Point at the next value, or the one before. Returns its number of how many. */
  step(by: number): [number, number] {
    const count = this._columns[0]?.length ?? 0;
    const before = this._plot?.cursor.idx ?? (by < 0 ? count : -1);
    const at = Math.min(count - 1, Math.max(0, before + by));
    if (this._plot !== null && count > 0) {
      const left = this._plot.valToPos(this._columns[0][at]!, 'x');
      this._plot.setCursor({ left, top: this._plot.over.clientHeight / 2 });
    }
    return [at, count];
  }

  /** The chart under its title. null: nothing is drawn. */
  picture(title: string): HTMLCanvasElement | null {
    const drawn = this._plot?.ctx.canvas;
    const picture = document.createElement('canvas');
    const context = picture.getContext('2d');
    if (drawn === undefined || context === null) {
      return null;
    }
    const scale = window.devicePixelRatio || 1;
    const head = 26 * scale;
    picture.width = drawn.width;
    picture.height = drawn.height + head;
    context.fillStyle = this._colour('--jp-layout-color1');
    context.fillRect(0, 0, picture.width, picture.height);
    context.fillStyle = this._colour('--jp-ui-font-color1');
    context.font = `600 ${13 * scale}px ${this._family}`;
    context.fillText(title, 8 * scale, 17 * scale, picture.width - 16 * scale);
    context.drawImage(drawn, 0, head);
    return picture;
  }

  dispose(): void {
    this._size.disconnect();
    this._sight.disconnect();
    this._theme.disconnect();
    document.removeEventListener('visibilitychange', this._draw);
    this._plot?.destroy();
    this._plot = null;
  }

  // -- drawing -------------------------------------------------------------------------------------------------------

  /** Nothing is drawn that nobody sees. */
  private _draw = (): void => {
    const drawing = this._drawing;
    const width = this._host.clientWidth;
    if (!this._seen || document.hidden || width === 0 || drawing === null) {
      return;
    }
    if (this._drawn !== drawing) {
      this._columns = columnsOf(drawing.curves, this._options.log);
    }
    if (this._plot === null || this._drawn?.curves.length !== drawing.curves.length) {
      this._plot?.destroy();
      this._plot = new uPlot(this._setUp(drawing), this._data, this._host);
    } else if (this._drawn !== drawing) {
      this._drawn = drawing;
      this._renew(this._plot);
    }
    this._drawn = drawing;
    if (this._plot.width !== width) {
      this._plot.setSize({ width, height: this._host.clientHeight });
    }
  };

  /** A part of x that was chosen stays. */
  private _renew(plot: uPlot): void {
    const { min, max } = plot.scales.x;
    plot.setData(this._data, !this._zoomed);
    if (this._zoomed && min !== undefined && max !== undefined) {
      plot.setScale('x', { min, max });
    }
  }

  private get _data(): uPlot.AlignedData {
    return this._columns as unknown as uPlot.AlignedData;
  }

  private _setUp(drawing: Drawing): uPlot.Options {
    const several = drawing.curves.length > 1;
    return {
      width: this._host.clientWidth,
      height: this._host.clientHeight,
      padding: [8, 14, null, null],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false, dist: 4 },
        points: { size: 7, show: !several || undefined }
      },
      scales: {
        x: { time: false },
        y: {
          distr: this._options.log ? 3 : 1,
          range: (plot, low, high) => this._range(plot, low, high)
        }
      },
      axes: [this._xAxis(drawing), this._yAxis(drawing)],
      series: [
        {},
        ...drawing.curves.map((_, at) => this._line(at, several)),
        ...this._edges(several)
      ],
      bands: several ? [] : [{ series: [2, 3], fill: () => this._colour('--tpu-chart-band') }],
      hooks: {
        draw: [plot => this._mark(plot)],
        setCursor: [plot => this._point(plot)],
        setScale: [(plot, key) => this._onScale(plot, key)]
      }
    };
  }

  private _line(at: number, several: boolean): uPlot.Series {
    return {
      stroke: () => this._colour(`--tpu-chart-${1 + (at % 6)}`),
      width: 1.6,
      spanGaps: several,
      points: { show: false }
    };
  }

  /** The edges of the band are not drawn themselves. */
  private _edges(several: boolean): uPlot.Series[] {
    const edge = { stroke: 'transparent', width: 0, points: { show: false } };
    return several ? [] : [edge, { ...edge }];
  }

  private _xAxis({ x }: Drawing): uPlot.Axis {
    const named = x !== '';
    return {
      ...this._axis(),
      incrs: WHOLE,
      space: 70,
      size: 26,
      label: named ? x : undefined,
      labelSize: named ? 14 : undefined,
      labelGap: -2,
      labelFont: this._font,
      grid: { show: false },
      values: (_, splits) => splits.map(one => (named ? one.toLocaleString('en-US') : ''))
    };
  }

  private _yAxis({ axis }: Drawing): uPlot.Axis {
    const log = this._options.log;
    return {
      ...this._axis(),
      ...(axis === 'bytes' && !log ? { incrs: POWERS } : {}),
      space: 28,
      size: (_, values) => 14 + 6.3 * Math.max(2, ...(values ?? []).map(one => one?.length ?? 0)),
      grid: { stroke: () => this._colour('--tpu-chart-grid'), width: 1 },
      values: (_, splits) => splits.map(one => (one === null ? null : axisText(axis, one)))
    };
  }

  private _axis(): uPlot.Axis {
    return {
      stroke: () => this._colour('--tpu-chart-words'),
      font: this._font,
      gap: 4,
      ticks: { stroke: () => this._colour('--tpu-chart-axis'), width: 1, size: 4 },
      border: { show: true, stroke: () => this._colour('--tpu-chart-axis'), width: 1 }
    };
  }

  private _range(plot: uPlot, low: number | null, high: number | null): [number, number] {
    if (this._options.log) {
      return low === null || high === null
        ? [1, 10]
        : (uPlot.rangeLog(low, high, 10, false) as [number, number]);
    }
    const [first, last] = plot.series[0].idxs ?? [0, this._columns[0].length - 1];
    const seen = this._columns.slice(1).flatMap(column => column.slice(first, last + 1));
    return rangeOf(this._drawing?.axis ?? 'number', seen);
  }

  /** Ticks where something was compiled, lines where these are few, ticks of another colour where a checkpoint was
   * saved, and arrows to what is above the chart. */
  private _mark(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const scale = window.devicePixelRatio || 1;
    const { min = 0, max = 0 } = plot.scales.x;
    const seen = (this._drawing?.marks ?? []).filter(step => step >= min && step <= max);
    ctx.save();
    ctx.strokeStyle = this._colour('--tpu-chart-mark');
    ctx.lineWidth = scale;
    for (const step of seen) {
      const x = Math.round(plot.valToPos(step, 'x', true)) + 0.5;
      ctx.setLineDash(seen.length > LINES ? [] : [2 * scale, 3 * scale]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top + bbox.height);
      ctx.lineTo(x, seen.length > LINES ? bbox.top + bbox.height - TICK * scale : bbox.top);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    ctx.strokeStyle = this._colour('--tpu-chart-3');
    ctx.lineWidth = 2 * scale;
    const saves = (this._drawing?.saves ?? []).filter(step => step >= min && step <= max);
    for (const step of saves) {
      const x = Math.round(plot.valToPos(step, 'x', true)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top + bbox.height);
      ctx.lineTo(x, bbox.top + bbox.height - TICK * scale);
      ctx.stroke();
    }
    ctx.fillStyle = this._colour('--tpu-chart-1');
    this._outside(plot).forEach(x => arrow(ctx, x, bbox.top, scale));
    ctx.restore();
  }

  private _outside(plot: uPlot): number[] {
    const top = plot.scales.y.max ?? Infinity;
    const [xs, ...columns] = this._columns;
    const [first, last] = plot.series[0].idxs ?? [0, -1];
    const found: number[] = [];
    for (let at = first; at <= last; at++) {
      if (columns.some(column => (column[at] ?? -Infinity) > top)) {
        found.push(plot.valToPos(xs[at]!, 'x', true));
      }
    }
    return found;
  }

  private _point(plot: uPlot): void {
    const at = plot.cursor.idx;
    const drawing = this._drawn;
    const pointed =
      at !== null && at !== undefined && drawing !== null && (plot.cursor.left ?? -1) >= 0;
    this._options.hover(pointed ? pointText(drawing, this._columns, at, this._options.trans) : '');
  }

  private _onScale(plot: uPlot, key: string): void {
    const xs = this._columns[0];
    const { min, max } = plot.scales.x;
    const zoomed = xs.length > 1 && (min !== xs[0] || max !== xs[xs.length - 1]);
    if (key === 'x' && zoomed !== this._zoomed) {
      this._zoomed = zoomed;
      this._options.zoom(zoomed);
    }
  }

  // -- colours -------------------------------------------------------------------------------------------------------

  private _colour(name: string): string {
    let known = this._colours.get(name);
    if (known === undefined) {
      known = getComputedStyle(this._host).getPropertyValue(name).trim() || 'gray';
      this._colours.set(name, known);
    }
    return known;
  }

  private get _family(): string {
    return getComputedStyle(this._host).fontFamily || 'sans-serif';
  }

  private get _font(): string {
    return `${FONT}px ${this._family}`;
  }

  private readonly _theme = new MutationObserver(() => {
    this._colours.clear();
    this._plot?.redraw(false);
  });
  private readonly _size = new ResizeObserver(() => this._draw());
  private readonly _sight = new IntersectionObserver(entries => {
    this._seen = entries[entries.length - 1].isIntersecting;
    this._draw();
  });

  private _plot: uPlot | null = null;
  private _drawing: Drawing | null = null;
  private _drawn: Drawing | null = null;
  private _columns: (number | null)[][] = [[]];
  private _colours = new Map<string, string>();
  private _seen = false;
  private _zoomed = false;
}

function arrow(context: CanvasRenderingContext2D, x: number, top: number, scale: number): void {
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x - 3 * scale, top + 5 * scale);
  context.lineTo(x + 3 * scale, top + 5 * scale);
  context.fill();
}
