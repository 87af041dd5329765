// Making elements. Text always becomes text nodes.

type Child = Node | string | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: never) => void) | null | undefined>;

/** An element with attributes, listeners (`onclick: …`) and children. `true` sets an empty attribute; false and null set none. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(name.slice(2), value as EventListener);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

export function append(parent: Element, children: Child[]): void {
  for (const child of children) if (child !== null && child !== undefined && child !== false) parent.append(child);
}

export function svg(tag: string, attributes: Record<string, string | number> = {}, ...children: Node[]): SVGElement {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

const kIcons = {
  menu: 'M4 7h16M4 12h16M4 17h16',
  plus: 'M12 5v14M5 12h14',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M8 8h8v8H8z',
  copy: 'M9 9h10v10H9zM15 9V5H5v10h4',
  check: 'M5 13l4 4L19 7',
  again: 'M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4',
  edit: 'M5 19l1-4L16 5l3 3L9 18zM14 7l3 3',
  more: 'M6 5l6 7-6 7M13 5l6 7-6 7',
  left: 'M14 6l-6 6 6 6',
  right: 'M10 6l6 6-6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  trash: 'M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10 11v5M14 11v5',
  close: 'M6 6l12 12M18 6L6 18',
  gear: 'M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4',
  layers: 'M12 4l8 4.5-8 4.5-8-4.5zM4 13l8 4.5 8-4.5',
  columns: 'M4 5h7v14H4zM13 5h7v14h-7z',
  pulse: 'M3 12h4l3-7 4 14 3-7h4',
  bars: 'M5 19v-6M10 19V5M15 19v-9M20 19v-4',
  moon: 'M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6L7 7M17 17l1.4 1.4M5.6 18.4L7 17M17 7l1.4-1.4',
  chat: 'M5 5h14v11H10l-5 4z',
  save: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  load: 'M12 16V5M7 9l5-5 5 5M5 20h14',
  undo: 'M9 6L4 11l5 5M4 11h10a5 5 0 0 1 0 10h-3',
  auto: 'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16',
} as const;

export type Icon = keyof typeof kIcons;

export function icon(name: Icon): SVGElement {
  return svg('svg', { viewBox: '0 0 24 24', class: 'icon', 'aria-hidden': 'true' }, svg('path', { d: kIcons[name] }));
}

/** The butterfly of the page's icon. */
export function logo(): SVGElement {
  return svg('svg', { viewBox: '0 0 32 32', class: 'logo', 'aria-hidden': 'true' }, svg('path', { d:
    'M16 9c-3-5-10-4-10 1 0 4 4 6 8 6-4 0-6 3-5 6 2 3 6 1 7-4 1 5 5 7 7 4 1-3-1-6-5-6 4 0 8-2 8-6 0-5-7-6-10-1z' }));
}

/** A button with an icon; `label` is its name for screen readers and its tooltip. */
export function icon_button(name: Icon, label: string, onclick: (event: MouseEvent) => void, attributes: Attributes = {}) {
  return h('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick, ...attributes }, icon(name));
}

/** A value that tells its listeners about changes. */
export class Signal<T> {
  private readonly listeners = new Set<(value: T) => void>();
  constructor(private value: T) {}
  get(): T {
    return this.value;
  }
  set(value: T): void {
    if (value === this.value) return;
    this.value = value;
    this.notify();
  }
  notify(): void {
    for (const listener of [...this.listeners]) listener(this.value);
  }
  /** Calls now and at every change. */
  watch(listener: (value: T) => void): () => void {
    this.listeners.add(listener);
    listener(this.value);
    return () => this.listeners.delete(listener);
  }
}

/** A function that runs `work` at most once per animation frame, and at most half of the time. Hidden tabs have no frames, so a timer backs them. */
export function once_per_frame(work: () => void): () => void {
  let frame = 0;
  let timer = 0;
  let free_at = 0;
  const run = () => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    frame = timer = 0;
    const begun = performance.now();
    work();
    free_at = 2 * performance.now() - begun;
  };
  return () => {
    if (timer) return;
    const wait = free_at - performance.now();
    if (wait <= 0) frame = requestAnimationFrame(run);
    timer = setTimeout(run, wait > 0 ? wait : 500);
  };
}

/** Whether the text reached the clipboard. */
export async function copy_text(text: string): Promise<boolean> {
  // navigator.clipboard only exists on https and localhost; servers in a local network are neither.
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { /* not allowed: the other way */ }
  }
  const area = h('textarea', { class: 'offscreen', 'aria-hidden': 'true' });
  area.value = text;
  document.body.append(area);
  const focused = document.activeElement as HTMLElement | null;
  area.select();
  const copied = document.execCommand('copy');
  area.remove();
  focused?.focus();
  return copied;
}

/** A button that copies, and says so for a moment. */
export function copy_button(label: string, text: () => string) {
  const button = icon_button('copy', label, async () => {
    const copied = await copy_text(text());
    button.replaceChildren(icon(copied ? 'check' : 'close'));
    announce(copied ? 'Copied' : 'Copying failed');
    setTimeout(() => button.replaceChildren(icon('copy')), 1500);
  });
  return button;
}

/** Screen readers say this. */
export function announce(text: string): void {
  const region = document.getElementById('announcer');
  if (region) region.textContent = text;
}

export function format_bytes(bytes: number): string {
  if (!Number.isFinite(bytes)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit++;
  }
  return `${bytes.toFixed(unit === 0 || bytes >= 100 ? 0 : bytes >= 10 ? 1 : 2)} ${units[unit]}`;
}

/** "q4_k · 0.56 GiB", as far as it is known. */
export function size_text({ type, bytes }: { type?: string; bytes?: number }): string {
  return [type, bytes && format_bytes(bytes)].filter(Boolean).join(' · ');
}

export function format_count(value: number): string {
  if (!Number.isFinite(value)) return '–';
  for (const [size, unit] of [[1e9, ' B'], [1e6, ' M']] as const) {
    if (value >= size) return (value / size).toFixed(value >= 100 * size ? 0 : value >= 10 * size ? 1 : 2) + unit;
  }
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

export function format_rate(per_second: number): string {
  if (!Number.isFinite(per_second)) return '–';
  return per_second >= 1000 ? format_count(per_second) : String(Number(per_second.toFixed(per_second >= 100 ? 0 : 1)));
}

export function format_change(before: number, after: number): string {
  const change = 100 * (after / before - 1);
  if (!Number.isFinite(change)) return '';
  return `${change < 0 ? '−' : '+'}${Math.abs(change).toFixed(1)} %`;
}

export function format_seconds(seconds: number): string {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function random_id(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(9));  // randomUUID only exists on https and localhost
  return [...bytes].map((b) => b.toString(36).padStart(2, '0')).join('');
}
