// A small plot of a value over the last minutes.

import { h, svg } from './dom';

const kWidth = 300;
const kHeight = 72;

export interface Sample { time: number; value: number }

/** The next round number that is not smaller. */
function ceiling(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 5, 8, 10].map((digit) => digit * power).find((top) => top >= value * 0.999) ?? 10 * power;
}

export class Plot {
  readonly element: HTMLElement;
  private readonly area = svg('path', { class: 'plot-area' });
  private readonly line = svg('path', { class: 'plot-line' });
  private readonly cursor = svg('line', { class: 'plot-cursor', y1: 0, y2: kHeight, visibility: 'hidden' });
  private readonly value = h('strong', {});
  private readonly top = h('span', { class: 'plot-top' });
  private readonly when = h('span', { class: 'plot-when' });
  private samples: Sample[] = [];
  private pointed: number | null = null;

  constructor(private readonly title: string, private readonly unit: string, private readonly seconds: number, private readonly format: (value: number) => string) {
    const picture = svg('svg', { viewBox: `0 0 ${kWidth} ${kHeight}`, preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      ...[0.5, 36, 71.5].map((y) => svg('line', { class: 'plot-grid', x1: 0, x2: kWidth, y1: y, y2: y })), this.area, this.line, this.cursor);
    picture.addEventListener('pointermove', (event) => {
      const box = picture.getBoundingClientRect();
      this.pointed = (event.clientX - box.left) / box.width;
      this.draw();
    });
    picture.addEventListener('pointerleave', () => {
      this.pointed = null;
      this.draw();
    });
    this.element = h('figure', { class: 'plot' },
      h('figcaption', {}, h('span', {}, title), h('span', { class: 'plot-value' }, this.value, ` ${unit}`)),
      h('div', { class: 'plot-frame' }, picture, this.top, this.when, h('span', { class: 'plot-begin' }, `${seconds / 60} min ago`)));
  }

  show(samples: Sample[]): void {
    this.samples = samples;
    this.draw();
  }

  private draw(): void {
    const now = this.samples[this.samples.length - 1]?.time ?? 0;
    const highest = ceiling(Math.max(0, ...this.samples.map((sample) => sample.value)));
    const x = (time: number) => kWidth * (1 - (now - time) / (1000 * this.seconds));
    const y = (value: number) => kHeight - 1 - (kHeight - 4) * (value / highest);
    const points = this.samples.map((sample) => `${x(sample.time).toFixed(1)} ${y(sample.value).toFixed(1)}`);
    this.line.setAttribute('d', points.length ? `M${points.join('L')}` : '');
    this.area.setAttribute('d', points.length ? `M${x(this.samples[0]!.time).toFixed(1)} ${kHeight}L${points.join('L')}L${kWidth} ${kHeight}Z` : '');
    let shown = this.samples[this.samples.length - 1];
    if (this.pointed !== null && this.samples.length > 0) {
      const time = now - (1 - this.pointed) * 1000 * this.seconds;
      shown = this.samples.reduce((best, sample) => (Math.abs(sample.time - time) < Math.abs(best.time - time) ? sample : best));
      this.cursor.setAttribute('x1', x(shown.time).toFixed(1));
      this.cursor.setAttribute('x2', x(shown.time).toFixed(1));
    }
    this.cursor.setAttribute('visibility', this.pointed === null ? 'hidden' : 'visible');
    this.value.textContent = shown ? this.format(shown.value) : '–';
    this.top.textContent = this.format(highest);
    const ago = shown ? Math.round((now - shown.time) / 1000) : 0;
    this.when.textContent = ago > 0 ? `${ago} s ago` : '';
    this.element.setAttribute('aria-label', `${this.title}: ${this.value.textContent} ${this.unit}`);
  }
}
