// Markdown of models as elements, by the sources themselves: what is shown, what stays text, and how long it takes.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { launch } from './browser.mjs';

let browser, page;
before(async () => {
  const entry = fileURLToPath(new URL('../src/markdown.ts', import.meta.url));
  const bundle = await build({ entryPoints: [entry], bundle: true, write: false, format: 'iife', globalName: 'markdown' });
  browser = await launch();
  page = await browser.newPage();
  await page.addScriptTag({ content: bundle.outputFiles[0].text });
});
after(() => browser?.close());

/** The elements of a text, without what every block of code has around it. */
const html = (text) => page.evaluate((markdown_text) => {
  const view = new markdown.MarkdownView();
  view.show(markdown_text);
  for (const head of view.element.querySelectorAll('.code-head')) head.remove();
  return view.element.innerHTML;
}, text);

const kCases = [
  ['a *b* **c** ***d*** ~~e~~ `f`', '<p>a <em>b</em> <strong>c</strong> <strong><em>d</em></strong> <del>e</del> <code>f</code></p>'],
  ['snake_case_name 2 * 3 * 4', '<p>snake_case_name 2 * 3 * 4</p>'],
  ['# One\n### Three ###', '<h3 class="level-1">One</h3><h5 class="level-3">Three</h5>'],
  ['- a\n- b\n  1. c\n  2. d', '<ul><li>a</li><li>b<ol><li>c</li><li>d</li></ol></li></ul>'],
  ['42.', '<p>42.</p>'],
  ['1815 was the year,\n1815. So it was.', '<p>1815 was the year,<br>1815. So it was.</p>'],
  ['3. a\n4. b', '<ol start="3"><li>a</li><li>b</li></ol>'],
  ['- [x] done\n- [ ] open', '<ul><li class="task"><input type="checkbox" disabled="" checked="">done</li><li class="task"><input type="checkbox" disabled="">open</li></ul>'],
  ['> a\n> b', '<blockquote><p>a<br>b</p></blockquote>'],
  ['a\n\n---\n\nb', '<p>a</p><hr><p>b</p>'],
  ['|a|b|\n|-|-:|\n|1|2|', '<div class="table" tabindex="0"><table><thead><tr><th class="align-left">a</th><th class="align-right">b</th></tr></thead>' +
    '<tbody><tr><td class="align-left">1</td><td class="align-right">2</td></tr></tbody></table></div>'],
  ['```\na < b\n```', '<div class="code"><pre tabindex="0"><code>a &lt; b</code></pre></div>'],
  ['```c\nint x = 1;\n```', '<div class="code"><pre tabindex="0"><code><span class="code-keyword">int</span> x = <span class="code-number">1</span>;</code></pre></div>'],
  ['[a](https://example.org/b)', '<p><a href="https://example.org/b" target="_blank" rel="noopener noreferrer">a</a></p>'],
  ['![a](https://example.org/b.png)', '<p><a href="https://example.org/b.png" target="_blank" rel="noopener noreferrer">a</a></p>'],
  ['\\*a\\*', '<p>*a*</p>'],
  // Stays text:
  ['<script>x()</script>', '<p>&lt;script&gt;x()&lt;/script&gt;</p>'],
  ['<img src=x onerror=y()>', '<p>&lt;img src=x onerror=y()&gt;</p>'],
  ['[a](javascript:b)', '<p>[a](javascript:b)</p>'],
  ['[a](JaVaScRiPt:b)', '<p>[a](JaVaScRiPt:b)</p>'],
  ['[a](&#106;avascript:b)', '<p>[a](&amp;#106;avascript:b)</p>'],
  ['[a](data:text/html,b)', '<p>[a](data:text/html,b)</p>'],
  ['[a](//example.org)', '<p>[a](//example.org)</p>'],
  ['<javascript:b>', '<p>&lt;javascript:b&gt;</p>'],
  ['`<b>`', '<p><code>&lt;b&gt;</code></p>'],
  ['```html"><script>\nx\n```', '<div class="code"><pre tabindex="0"><code>x</code></pre></div>'],
];

test('markdown becomes these elements', async () => {
  for (const [text, expected] of kCases) assert.equal(await html(text), expected, text);
});

test('a text that grows ends as the whole text does', async () => {
  const text = kCases.map(([one]) => one).join('\n\n');
  const grown = await page.evaluate((whole) => {
    const view = new markdown.MarkdownView();
    for (let end = 1; end <= whole.length; end++) view.show(whole.slice(0, end));
    for (const head of view.element.querySelectorAll('.code-head')) head.remove();
    return view.element.innerHTML;
  }, text);
  assert.equal(grown, await html(text));
});

test('no text takes long', async () => {
  const kSize = 30_000;
  for (const part of ['[', '![', '](', '[a](', '*a ', '**', '*_', '`', '``a`', '<', '<a ', '> ', '- ', '1. ', '\\(', '$$', '~~~\n', '#', '|', '|-', 'a|', '(', 'http://', '\n', ' ', '"', '/*', '\\', '___ ']) {
    const text = part.repeat(kSize / part.length);
    for (const one of [text, `${text}\n${'-|'.repeat(text.length / part.length)}\n${text}`, `\`\`\`c\n${text}`]) {
      const seconds = await page.evaluate((markdown_text) => {
        const begun = performance.now();
        new markdown.MarkdownView().show(markdown_text);
        return (performance.now() - begun) / 1000;
      }, one);
      assert.ok(seconds < 5, `${seconds} s for ${JSON.stringify(part)} many times`);
    }
  }
});
