// node screenshots.mjs BASE_URL OUT_DIR: the pictures of docs/page.md, taken from a running `imago serve`; about a minute.
// CHROMIUM names another browser; PROMPTS="first|second" other prompts; ALL=1 adds pictures of every view, for a look at the design.

import { chromium } from 'playwright-core';
import { existsSync } from 'node:fs';

const [base, out] = process.argv.slice(2);
if (!base || !out) {
  console.error('usage: node screenshots.mjs BASE_URL OUT_DIR');
  process.exit(2);
}
const executablePath = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find((path) => path && existsSync(path));
const [first, second] = (process.env.PROMPTS ?? 'Up betimes, and to the office,|It was a cold morning in Baker Street when').split('|');
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update', '--disable-sync'] });

async function open(width, height, colorScheme, options = {}, settings = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, deviceScaleFactor: 1, reducedMotion: 'reduce', ...options });
  await context.addInitScript((saved) => localStorage.setItem('imago.settings', JSON.stringify(saved)), settings);
  const page = await context.newPage();
  await page.goto(base);
  await page.waitForFunction(() => document.querySelector('.picker')?.value);
  return page;
}

async function ask(page, text) {
  await page.fill('#prompt', text);
  await page.click('.send');
  await page.waitForSelector('.send:not(.busy)');
  await page.waitForSelector('.message.assistant:last-child .stats');
}

const save = (page, name) => page.screenshot({ path: `${out}/${name}.png` });

const desktop = await open(1280, 800, 'light');
await ask(desktop, first);
await desktop.click('.header .toggle:has-text("Precision")');
await desktop.waitForSelector('.roles tr');
await desktop.fill('#morph-what', 'ffn');
await desktop.selectOption('#morph-type', 'q3_k');
await desktop.click('.morph .primary');
await desktop.waitForSelector('.result');
await desktop.waitForFunction(() => !document.querySelector('.progress').textContent);
await save(desktop, 'serve-desktop');
await desktop.click('.morph-buttons .button:has-text("Undo")');  // leaves the server as it was
await desktop.waitForFunction(() => document.querySelectorAll('.result').length === 2);

const phone = await open(390, 844, 'light', { hasTouch: true, isMobile: true }, { probabilities: true, max_tokens: '130' });
await ask(phone, second);
const unsure = await phone.evaluate(() => [...document.querySelectorAll('.token')].slice(8)
  .reduce((a, b) => (Number(b.style.getPropertyValue('--tint')) > Number(a.style.getPropertyValue('--tint')) ? b : a)).dataset.index);
await phone.tap(`.token[data-index="${unsure}"]`);
await phone.waitForSelector('.popover');
await save(phone, 'serve-phone');

const dark = await open(1280, 800, 'dark', {}, { max_tokens: '150' });
await dark.click('.view-button:has-text("Side by side")');
await dark.waitForFunction(() => document.querySelectorAll('.side select option').length > 4);
await dark.fill('.compare-form textarea', first);
await dark.selectOption('.side select >> nth=1', { index: await dark.evaluate(() => [...document.querySelectorAll('.side select')[1].options].findIndex(({ value }) => value.endsWith('@q4_k'))) });
await dark.check('.compare-row input >> nth=1');
await dark.click('.compare-form .primary');
await dark.waitForFunction(() => document.querySelectorAll('.side .stats span').length > 2 && document.querySelector('.compare-form .primary').textContent === 'Run both');
await dark.waitForTimeout(300);
await save(dark, 'serve-dark');

// Some minutes of visitors in one: their number rises and falls.
const watched = await open(1280, 800, 'light');
await watched.click('.view-button:has-text("Server")');
await watched.evaluate(async (prompts) => {
  const until = performance.now() + 75_000;
  const visitor = async (number) => {
    const begun = performance.now();
    while (performance.now() < until) {
      const share = 0.5 - 0.5 * Math.cos((performance.now() - begun) / 3500);
      if (number < 8 * share) {
        await fetch('/v1/completions', { method: 'POST', body: JSON.stringify({ prompt: `${number} ${prompts[number % 2]}`.repeat(number + 1), max_tokens: 150 + 30 * number, ignore_eos: true }) });
      }
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
  };
  for (let number = 0; number < 8; number++) visitor(number);
  await new Promise((resolve) => setTimeout(resolve, 40_500));
}, [first, second]);
await watched.waitForSelector('.running-table tr');
await save(watched, 'serve-server');

if (process.env.ALL) {
  await dark.click('.view-button:has-text("Chat")');
  await save(dark, 'welcome-dark');
  await ask(dark, first);
  await save(dark, 'chat-dark');
  const light = await open(1280, 800, 'light');
  await save(light, 'welcome-light');
  await light.click('.header .toggle:has-text("Settings")');
  await save(light, 'settings-light');
  const small = await open(360, 740, 'light', { hasTouch: true, isMobile: true });
  await save(small, 'phone-welcome');
  await ask(small, first);
  await save(small, 'phone-chat');
  await small.click('.header [aria-label="Conversations"]');
  await small.waitForTimeout(300);
  await save(small, 'phone-sidebar');
  await small.click('.view-button:has-text("Server")');
  await small.waitForTimeout(2500);
  await save(small, 'phone-server');
  await small.click('.header [aria-label="Precision"]');
  await small.waitForTimeout(500);
  await save(small, 'phone-precision');
}
await browser.close();
