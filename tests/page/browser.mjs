// What the tests share: a browser, and the real program with the bundled model.

import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';

export const launch = () => chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', headless: true,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

/** Starts `imago serve` and resolves once the model can be asked. */
export async function serve(...flags) {
  const child = spawn(process.env.IMAGO_PROGRAM ?? 'imago', ['serve', '--port', '0', ...flags], { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  let said = '';
  const base = await new Promise((resolve, reject) => {
    createInterface({ input: child.stderr }).on('line', (line) => {
      said += `${line}\n`;
      const address = /^listening on (\S+)$/.exec(line);
      if (address) resolve(address[1]);
    });
    ended.then(() => reject(new Error(`imago serve ended: ${said}`)));
  });
  for (let i = 0; (await fetch(`${base}/health`)).status !== 200; i++) {
    if (i > 500) throw new Error('the model does not load');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return {
    base,
    async stop() {
      child.kill('SIGTERM');
      return ended;
    },
    async get(path) {
      return (await fetch(base + path)).json();
    },
    async post(path, body) {
      return (await fetch(base + path, { method: 'POST', body: JSON.stringify(body) })).json();
    },
  };
}

/** The page in a profile of its own. Errors of scripts and requests to other hosts are collected in `page.problems`. */
export async function open(browser, base, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, reducedMotion: 'reduce', ...options });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  page.problems = [];
  page.on('pageerror', (error) => page.problems.push(String(error)));
  page.on('console', (message) => {
    if (/Content Security Policy|Trusted/.test(message.text())) page.problems.push(message.text());
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(base) && !/^(data|blob):/.test(request.url())) page.problems.push(`asked for ${request.url()}`);
  });
  await page.goto(base);
  return page;
}
