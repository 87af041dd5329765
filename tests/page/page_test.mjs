// The page in a browser, against the real server with the bundled model.

import assert from 'node:assert/strict';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { launch, open, serve } from './browser.mjs';

const kPrompt = 'It was a cold morning in Baker Street when';
const kModel = 'imago-20m';
let browser, server, page;

before(async () => {
  // Answers go on for as long as they may, which is what a test of stopping needs, and are the same each time.
  [browser, server] = await Promise.all([launch(), serve('-c', '30000', '--temp', '0', '--ignore-eos')]);
});
after(async () => {
  await browser?.close();
  assert.equal(await server?.stop(), 0, 'imago serve ends in order');
});
beforeEach(async () => {
  page = await open(browser, server.base);
});
afterEach(async () => {
  const { problems } = page;
  await page.context().close();
  assert.deepEqual(problems, []);
});

const answers = () => page.locator('.message.assistant');
const done = () => page.waitForSelector('.send:not(.busy)');
const setting = (name, value) => page.evaluate(([key, set]) => {
  const saved = JSON.parse(localStorage.getItem('imago.settings') ?? '{}');
  localStorage.setItem('imago.settings', JSON.stringify({ ...saved, [key]: set }));
}, [name, String(value)]);
/** Sets sampling settings as if an earlier visit had, and loads the page with them. */
async function with_settings(values) {
  const has_model = () => page.waitForFunction(() => document.querySelector('.picker').value !== '');  // which is saved, too
  await has_model();
  for (const [name, value] of Object.entries(values)) await setting(name, value);
  await page.reload();
  await has_model();
}
async function send(text) {
  await page.fill('#prompt', text);
  await page.click('.send');
}
async function ask(text) {
  const before_it = await answers().count();
  await send(text);
  await answers().nth(before_it).waitFor();
  await done();
  return answers().nth(before_it).locator('.message-body').innerText();
}
/** What the server says after a text, greedily. */
const said = async (prompt, max_tokens, model = kModel) =>
  (await server.post('/v1/completions', { model, prompt, max_tokens, temperature: 0 })).choices[0].text;
/** Waits until what is read fits, which takes a moment after requests, reloads and steps in the history. */
async function eventually(read, check) {
  const until = Date.now() + 20_000;
  for (;;) {
    try {
      return check(await read());
    } catch (error) {
      if (!(error instanceof assert.AssertionError) || Date.now() > until) throw error;
    }
    await page.waitForTimeout(20);
  }
}
const spaced = (text) => text.trim().replace(/\s+/g, ' ');

describe('chat', () => {
  test('an answer streams to its end', async () => {
    await with_settings({ max_tokens: 400 });
    await page.evaluate(() => {
      window.lengths = [];
      new MutationObserver(() => window.lengths.push(document.querySelector('.message.assistant .message-body')?.textContent.length ?? 0))
        .observe(document.querySelector('.thread'), { childList: true, subtree: true, characterData: true });
    });
    assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt');
    const text = await ask(kPrompt);
    assert.equal(spaced(text), spaced(await said(kPrompt, 400)));
    const lengths = await page.evaluate(() => [...new Set(window.lengths)]);
    assert.ok(lengths.length > 3, `the text had the lengths ${lengths}`);
    assert.deepEqual(lengths, [...lengths].sort((a, b) => a - b));
    const stats = await answers().locator('.stats').innerText();
    assert.match(stats, /tokens\/s/);
    assert.match(stats, /400 tokens/);
    assert.match(stats, /cut off at the limit/);
    assert.equal(await page.title(), `${kPrompt} · imago`);
  });

  test('a second turn goes on after the first', async () => {
    await with_settings({ max_tokens: 12 });
    const first = await said(kPrompt, 12);
    await ask(kPrompt);
    const second = await ask('Then');
    assert.equal(spaced(second), spaced(await said(`${kPrompt}${first}\n\nThen`, 12)));
    await answers().nth(1).locator('[aria-label="Continue"]').click();
    await done();
    const longer = await answers().nth(1).locator('.message-body').innerText();
    assert.ok(longer.startsWith(second) && longer.length > second.length);
  });

  test('conversations use the chat template where that is wanted', async () => {
    await with_settings({ format: 'chat', max_tokens: 8, system: 'Be brief.' });
    const [request] = await Promise.all([page.waitForRequest('**/v1/chat/completions'), ask('Hello')]);
    const body = request.postDataJSON();
    assert.deepEqual(body.messages, [{ role: 'system', content: 'Be brief.' }, { role: 'user', content: 'Hello' }]);
    assert.equal(body.max_tokens, 8);
    assert.equal(await answers().count(), 1);
  });

  test('stop ends an answer here and at the server', async () => {
    await with_settings({ max_tokens: 29000 });
    const { cancelled } = (await server.get('/imago/state')).models[0];
    await send(kPrompt);
    await page.waitForFunction(() => document.querySelector('.message.assistant .message-body')?.textContent.length > 200);
    await page.click('.send[aria-label="Stop"]');
    await done();
    assert.match(await answers().locator('.stats').innerText(), /stopped/);
    await eventually(async () => (await server.get('/imago/state')).models[0],
      (state) => assert.deepEqual([state.running, state.cancelled], [[], cancelled + 1]));
    // What was generated stays, also after a reload.
    const text = await answers().locator('.message-body').innerText();
    await page.reload();
    assert.equal(await answers().locator('.message-body').innerText(), text);
    assert.match(await answers().locator('.stats').innerText(), /stopped/);
  });

  test('regenerate adds a version, and both can be read', async () => {
    await with_settings({ max_tokens: 12, temperature: 5 });
    const first = await ask(kPrompt);
    await page.click('[aria-label="Regenerate"]');
    await done();
    assert.match(await answers().locator('.versions').innerText(), /2\/2/);
    const second = await answers().locator('.message-body').innerText();
    assert.notEqual(second, first);
    await page.click('[aria-label="Earlier version"]');
    assert.equal(await answers().locator('.message-body').innerText(), first);
    assert.ok(await page.locator('[aria-label="Earlier version"]').isDisabled());
    await page.click('[aria-label="Later version"]');
    assert.equal(await answers().locator('.message-body').innerText(), second);
  });

  test('an edited message is answered anew', async () => {
    await with_settings({ max_tokens: 12 });
    await ask(kPrompt);
    await page.hover('.message.user');
    await page.click('.message.user [aria-label="Edit"]');
    assert.equal(await page.inputValue('.edit'), kPrompt);
    await page.fill('.edit', 'Up betimes, and to the office,');
    await page.click('.edit-form .primary');
    await done();
    assert.match(await page.locator('.message.user .versions').innerText(), /2\/2/);
    assert.equal(spaced(await answers().locator('.message-body').innerText()), spaced(await said('Up betimes, and to the office,', 12)));
    await page.click('.message.user [aria-label="Earlier version"]');
    assert.equal(spaced(await answers().locator('.message-body').innerText()), spaced(await said(kPrompt, 12)));
  });

  test('conversations are kept, opened, renamed, exported, imported and deleted', async () => {
    await with_settings({ max_tokens: 12 });
    await ask('First of all');
    await page.click('.new-chat');
    const text = await ask('Second to none');
    await page.reload();
    const items = page.locator('.conversation .open');
    const titles = (expected) => eventually(() => items.allInnerTexts(), (texts) => assert.deepEqual(texts, expected));
    const user_text = (expected) => eventually(() => page.locator('.message.user .message-body').innerText(), (shown) => assert.equal(shown, expected));
    await titles(['Second to none', 'First of all']);
    assert.equal(await answers().locator('.message-body').innerText(), text, 'the address names the conversation');
    await items.nth(1).click();
    await user_text('First of all');
    await page.goBack();
    await user_text('Second to none');

    const [download] = await Promise.all([page.waitForEvent('download'), page.click('text=Export all')]);
    const file = await download.path();
    for (const left of [1, 0]) {
      await page.locator('.conversation').first().hover();
      await page.locator('.conversation').first().locator('[aria-label="Delete"]').click();
      await page.click('dialog .danger');
      await page.waitForFunction((count) => document.querySelectorAll('.conversation').length === count, left);
    }
    const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.click('text=Import')]);
    await chooser.setFiles(file);
    await page.waitForFunction(() => document.querySelectorAll('.conversation').length === 2);
    await items.first().click();
    await page.click('.conversation.current [aria-label="Rename"]');
    await page.fill('dialog input', 'A name');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.conversation >> text=A name');
    await page.reload();
    await titles(['A name', 'First of all']);
    assert.equal(await answers().locator('.message-body').innerText(), text);
  });

  test('sampling settings reach the server and last', async () => {
    await page.click('.header [aria-label="Settings"]');
    await page.waitForFunction(() => document.querySelector('#set-top_k').placeholder === '40');
    await page.fill('#set-temperature', '1.37');
    await page.fill('#set-max_tokens', '16');
    await page.fill('#set-seed', '7');
    await page.fill('#set-top_p', '3');
    await page.fill('#set-stop', 'zebra\\n');
    assert.equal(await page.getAttribute('#set-top_p', 'aria-invalid'), 'true');
    await page.reload();
    const [request] = await Promise.all([page.waitForRequest('**/v1/completions'), ask(kPrompt)]);
    const { temperature, max_tokens, seed, top_p, stop } = request.postDataJSON();
    assert.deepEqual({ temperature, max_tokens, seed, top_p, stop }, { temperature: 1.37, max_tokens: 16, seed: 7, top_p: undefined, stop: ['zebra\n'] });
    assert.match(await answers().locator('.stats').innerText(), /16 tokens/);
    const first = await answers().locator('.message-body').innerText();
    await page.click('[aria-label="Regenerate"]');
    await done();
    assert.equal(await answers().locator('.message-body').innerText(), first, 'the same seed, the same answer');
    await page.click('.header [aria-label="Settings"]');
    assert.equal(await page.inputValue('#set-temperature'), '1.37');
    await page.click('text=Back to the defaults of the server');
    assert.equal(await page.inputValue('#set-temperature'), '');
  });

  test('errors of the server are told, and can be tried again', async () => {
    await send('word '.repeat(60_000));
    await page.waitForSelector('.error');
    assert.match(await page.locator('.error').innerText(), /30000/);
    await page.click('.new-chat');
    await page.context().setOffline(true);
    await send(kPrompt);
    await page.waitForSelector('.error');
    assert.match(await page.locator('.error').innerText(), /does not answer/);
    assert.ok(await page.locator('.banner').isVisible());
    await page.context().setOffline(false);
    await page.click('.error .button');
    await page.waitForSelector('.message.assistant .stats');
    await page.waitForSelector('.banner', { state: 'hidden' });
  });

  test('reasoning is apart from the answer, and a stream that breaks off says so', async () => {
    const event = (value) => `data: ${JSON.stringify(value)}\n\n`;
    const delta = (value) => event({ choices: [{ index: 0, delta: value }] });
    let rest = delta({ content: '42.' }) + event({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }) + 'data: [DONE]\n\n';
    await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body: delta({ reasoning_content: 'Six by seven.' }) + rest }));
    await with_settings({ format: 'chat' });
    assert.equal(await ask('How much?'), '42.');
    const reasoning = page.locator('.reasoning');
    assert.equal(await reasoning.getAttribute('open'), null);
    await reasoning.locator('summary').click();
    assert.match(await reasoning.innerText(), /Six by seven\./);
    rest = delta({ content: 'Half' });
    await send('Again?');
    await page.waitForSelector('.error');
    assert.match(await page.locator('.error').innerText(), /ended before/);
    rest = delta({ content: 'Half' }) + event({ error: { message: 'out of cache pages' } });
    await page.click('.error .button');
    await page.waitForFunction(() => /out of cache pages/.test(document.querySelector('.error')?.textContent));
  });
});

describe('probabilities', () => {
  test('each token tells what else was likely, and the answer can go on from there', async () => {
    const kTokens = 12;
    await with_settings({ max_tokens: kTokens });
    await page.click('.composer .toggle');
    await ask(kPrompt);
    const reply = await server.post('/v1/completions', { prompt: kPrompt, max_tokens: kTokens, temperature: 0, logprobs: 5 });
    const expected = reply.choices[0].logprobs.content;
    const tokens = page.locator('.token');
    assert.equal(await tokens.count(), kTokens);
    const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
    for (const index of [0, 5]) {
      assert.equal(await tokens.nth(index).innerText(), expected[index].token);
      await tokens.nth(index).hover();
      const rows = await page.locator('.popover .row:not(.others) .percent').allInnerTexts();
      assert.deepEqual(rows, expected[index].top_logprobs.map(({ logprob }) => percent(logprob)));
      assert.equal(await page.locator('.popover .chosen .percent').innerText(), percent(expected[index].logprob));
    }
    await page.mouse.move(5, 5);
    await page.waitForSelector('.popover', { state: 'detached' });

    // With the keyboard: to the third token, into its alternatives, and on from the second one.
    await tokens.first().focus();
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowDown');
    const chosen = await page.evaluate(() => document.activeElement.querySelector('.alternative').textContent);
    await page.keyboard.press('Enter');
    await done();
    assert.match(await answers().locator('.versions').innerText(), /2\/2/);
    const texts = await tokens.allInnerTexts();
    assert.deepEqual(texts.slice(0, 3), [expected[0].token, expected[1].token, chosen.replace('␣', ' ')]);
    assert.equal(texts.length, 3 + kTokens);
    const rest = await said(kPrompt + texts.slice(0, 3).join(''), kTokens);
    assert.equal(texts.slice(3).join(''), rest);
  });
});

describe('precision live', () => {
  const facts = async () => (await page.locator('.precision .about').innerText()).replace(/\n+/g, ' ');
  const result = (count) => page.waitForFunction((n) => document.querySelectorAll('.result').length === n && document.querySelector('.progress').textContent === '', count);

  test('types are shown, changed and taken back', async () => {
    const before_it = await server.get('/imago/types');
    await page.click('.header [aria-label="Precision"]');
    await page.waitForSelector('.roles tbody tr');
    assert.equal(await page.locator('.roles tbody tr').count(), before_it.roles.length);
    assert.match(await facts(), /Type iq4_xs, mixed Size 11\.3 MiB Parameters 20\.7 M/);
    const offered = await page.locator('#morph-type option').allInnerTexts();
    assert.equal(offered.length, before_it.formats.length);
    assert.ok(offered.includes('q4_k (4.5)') && !offered.some((name) => name.startsWith('entity')));

    await page.fill('#morph-what', 'ffn');
    await page.selectOption('#morph-type', 'q2_k');
    await page.click('.morph .primary');
    await result(1);
    const after_it = await server.get('/imago/types');
    assert.ok(after_it.roles.filter(({ role }) => ['gate', 'up', 'down'].includes(role)).every(({ type }) => type === 'q2_k'));
    assert.ok(after_it.bytes < before_it.bytes);
    const told = await page.locator('.result').first().innerText();
    assert.match(told, /ffn → q2_k/);
    assert.match(told, new RegExp(`11\\.3 MiB → ${(after_it.bytes / 2 ** 20).toFixed(2).replace('.', '\\.')} MiB`));
    assert.match(told, /Speed\s+[\d\s]+ → [\d\s]+ tokens\/s/);
    await eventually(facts, (text) => assert.match(text, /Type q2_k, mixed .* Speed [\d\s]+ tokens\/s/));
    await page.waitForFunction(() => /^q2_k/.test(document.querySelector('.header-facts').textContent));

    await page.click('text=Undo');
    await result(2);
    assert.deepEqual((await server.get('/imago/types')).roles, before_it.roles);
    await page.waitForSelector('.morph-buttons .button:not(.primary):disabled');

    // Every role of the table is a pattern; a wrong one is explained.
    await page.click('.roles >> text=token embedding');
    await page.uncheck('#morph-measure');
    await page.click('.morph .primary');
    await result(3);
    await page.click('text=Undo');
    await result(4);
    await page.fill('#morph-what', 'nonsense');
    await page.click('.morph .primary');
    await page.waitForFunction(() => /no matrix matches 'nonsense'/.test(document.querySelector('.progress').textContent));
  });

  test('one prompt side by side at two precisions', async () => {
    await with_settings({ max_tokens: 40 });
    await page.click('.view-button >> text=Side by side');
    await page.waitForSelector('.side option[value="imago-20m@q2_k"]', { state: 'attached' });
    await page.locator('.side select').nth(1).selectOption(`${kModel}@q2_k`);
    await page.fill('.compare-form textarea', kPrompt);
    for (const in_turns of [false, true]) {
      await page.locator('.compare-row input').nth(1).setChecked(in_turns);
      await page.click('.compare-form .primary');
      await page.waitForFunction(() => document.querySelectorAll('.side .stats span').length > 3 && document.querySelector('.compare-form .primary').textContent === 'Run both');
      const texts = await page.locator('.side-text').allInnerTexts();
      const expected = [(await said(kPrompt, 40)).trim(), (await said(kPrompt, 40, `${kModel}@q2_k`)).trim()];
      assert.deepEqual(texts.map(spaced), expected.map(spaced));
      const words = expected.map((text) => text.split(/\s+/));
      const same = words[0].findIndex((word, i) => word !== words[1][i]);
      const verdict = await page.locator('.verdict').innerText();
      assert.match(verdict, same === 0 ? /differ from the first word/ : new RegExp(`differ after ${same} word`));
      assert.match(verdict, in_turns ? /less memory and generates [\d.]+ times as fast\.$/ : /less memory\.$/);
      assert.match(await page.locator('.side').nth(1).innerText(), /40 tokens/);
    }
    // The facts of NAME@TYPE are its own.
    const types = await server.get(`/imago/types?model=${encodeURIComponent(`${kModel}@q2_k`)}`);
    assert.equal(types.model, `${kModel}@q2_k`);
    assert.match(await page.locator('.side-size').nth(1).innerText(), new RegExp(`^q2_k · ${(types.bytes / 2 ** 20).toFixed(2)} MiB$`));
  });
});

describe('server', () => {
  test('plots, cache and requests under way', async () => {
    await with_settings({ max_tokens: 29000 });
    await send(kPrompt);
    await page.waitForSelector('.message.assistant .token, .message.assistant p');
    await page.click('.view-button >> text=Server');
    await page.waitForSelector('.running-table tbody tr');
    const names = await page.locator('.model-state').first().locator('.plot figcaption > span:first-child').allInnerTexts();
    assert.deepEqual(names, ['Generation', 'Prompt', 'Requests running and waiting', 'Batch', 'Prompt from the cache', 'Cache in use']);
    const value = (index) => page.locator('.model-state').first().locator('.plot-value strong').nth(index).innerText();
    await page.waitForFunction(() => /\d [\d\u202f]|\d{2}/.test(document.querySelector('.plot-value strong').textContent));
    assert.equal(await value(2), '1');
    assert.equal(await value(3), '1');
    assert.ok((await page.locator('.plot-line').first().getAttribute('d')).startsWith('M'));
    const state = (await server.get('/imago/state')).models[0];
    assert.match(await page.locator('.cache-head').first().innerText(), new RegExp(`of ${String(state.pages).replace(/\B(?=(\d{3})+$)/g, '\u202f')}, ${state.page_tokens} tokens each`));
    await page.click('.view-button >> text=Chat');
    await page.keyboard.press('Escape');
    await done();
  });
});

describe('every reader', () => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const luminance = (colour) => {
    const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };

  test('light and dark, as the system has it or as chosen, with enough contrast', async () => {
    const light = await background();
    await page.emulateMedia({ colorScheme: 'dark' });
    await page.waitForSelector('.view-button >> text=Light');
    const dark = await background();
    assert.ok(luminance(light) > 0.8 && luminance(dark) < 0.05);
    await page.click('.view-button >> text=Light');
    assert.equal(await background(), light);
    await page.reload();
    assert.equal(await background(), light, 'the choice lasts');
    for (const theme of ['light', 'dark']) {
      await with_settings({ theme });
      const colour = (names) => page.evaluate((list) => list.map((name) => {
        const probe = document.createElement('i');
        probe.style.color = `var(--${name})`;
        document.body.append(probe);
        const { color } = getComputedStyle(probe);
        probe.remove();
        return color;
      }), names);
      for (const [front, back] of [['text', 'back'], ['text', 'back-3'], ['text-2', 'back'], ['text-2', 'back-2'], ['link', 'back'], ['link', 'accent-soft'], ['accent-text', 'accent'],
        ['danger', 'danger-soft'], ['good', 'back'], ['danger', 'back'], ['code-comment', 'back-2'], ['code-keyword', 'back-2'], ['code-string', 'back-2'], ['code-number', 'back-2'], ['code-call', 'back-2']]) {
        const [a, b] = (await colour([front, back])).map(luminance).sort((x, y) => y - x);
        assert.ok((a + 0.05) / (b + 0.05) >= 4.5, `${theme}: ${front} on ${back} has a contrast of ${((a + 0.05) / (b + 0.05)).toFixed(2)}`);
      }
    }
  });

  test('a phone shows every view', async () => {
    await page.context().close();
    page = await open(browser, server.base, { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
    await with_settings({ max_tokens: 30 });
    const fits = async (what) => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${what} is wider than the screen`);
    await fits('the welcome');
    await page.tap('#prompt');
    await page.fill('#prompt', kPrompt);
    await page.tap('.send');
    await page.waitForSelector('.message.assistant .stats span');
    await fits('the chat');
    for (const [label, content] of [['Side by side', '.compare'], ['Server', '.model-state'], ['Chat', '.chat']]) {
      assert.ok(!(await page.locator('.sidebar').isVisible()));
      await page.tap('button[aria-label="Conversations"]');
      await page.waitForFunction(() => document.querySelector('.sidebar').getBoundingClientRect().left === 0);
      await page.tap(`.view-button >> text=${label}`);
      await page.waitForSelector(content);
      await fits(label);
    }
    for (const label of ['Precision', 'Settings']) {
      await page.tap(`.header [aria-label="${label}"]`);
      await page.waitForSelector('.panel .field');
      await fits(label);
      await page.tap('.panel [aria-label="Close"]');
    }
  });

  test('everything works with a keyboard alone', async () => {
    await with_settings({ max_tokens: 8 });
    const to_top = () => page.evaluate(() => {
      document.body.tabIndex = -1;
      document.body.focus();
      document.body.removeAttribute('tabindex');
    });
    const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') || document.activeElement.textContent);
    await to_top();
    await page.keyboard.press('Tab');
    assert.equal(await focused(), 'Write a message', 'the way past the sidebar comes first');
    await page.keyboard.press('Enter');
    await page.keyboard.type(kPrompt);
    await page.keyboard.press('Enter');
    await page.waitForSelector('.message.assistant .stats span');
    await page.keyboard.press('ArrowUp');
    assert.equal(await page.evaluate(() => document.activeElement.value), kPrompt);
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('.edit').count(), 0);

    await page.locator('.header [aria-label="Settings"]').focus();
    await page.keyboard.press('Enter');
    assert.equal(await focused(), 'Close', 'the focus goes into the panel');
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('.panel').isVisible(), false);
    assert.equal(await focused(), 'Settings', 'and back');
    await page.keyboard.press('Control+k');
    assert.equal(await page.locator('.message').count(), 0);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt');

    // By Tab alone from the first control to the last; each tells its name and shows where the focus is.
    await to_top();
    const names = [];
    for (let i = 0; i < 60; i++) {
      await page.keyboard.press('Tab');
      const [name, is_visible] = await page.evaluate(() => {
        const element = document.activeElement;
        const label = element.id && document.querySelector(`label[for="${element.id}"]`);
        return [element === document.body ? null : element.getAttribute('aria-label') || label?.textContent || element.textContent,
          getComputedStyle(element).outlineStyle !== 'none' || getComputedStyle(element.closest('.composer') ?? element).borderColor !== ''];
      });
      if (name === null) break;
      assert.ok(name !== '' && is_visible, `control ${i} has no name or no outline`);
      names.push(name);
    }
    for (const name of ['New chat', 'Delete', 'Server', 'Model', 'Precision', 'Settings', 'Probabilities', 'Message', 'Send']) {
      assert.ok(names.includes(name), `${name} is among ${names}`);
    }
  });

  test('controls have names, and nothing moves for those who do not want it', async () => {
    await with_settings({ max_tokens: 8 });
    await ask(kPrompt);
    const nameless = () => page.evaluate(() => [...document.querySelectorAll('button, input, select, textarea, a')]
      .filter((e) => !e.hidden && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map((e) => e.outerHTML));
    for (const label of ['Settings', 'Precision']) {
      await page.click(`.header [aria-label="${label}"]`);
      assert.deepEqual(await nameless(), []);
    }
    for (const label of ['Side by side', 'Server']) {
      await page.click(`.view-button >> text=${label}`);
      assert.deepEqual(await nameless(), []);
    }
    assert.equal(await page.evaluate(() => [...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).animationName !== 'none').length), 0);
  });
});

describe('hostile text', () => {
  const kHostile = 'Before <img src=x onerror="window.hacked=1"> <script>window.hacked=1</script> [click](javascript:window.hacked=1) ' +
    '[data](data:text/html,<script>window.hacked=1</script>) ![pixel](https://example.org/pixel.png) <a href="javascript:window.hacked=1">x</a>\n\n' +
    '```html\n<script>window.hacked=1</script>\n```\n\n<iframe src="https://example.org"></iframe> <style>*{display:none}</style> after';
  const is_harmless = async () => {
    const found = await page.evaluate(() => ({
      hacked: window.hacked,
      elements: document.querySelectorAll('.thread :is(script, img, iframe, style, object, embed, form, link, meta)').length,
      handlers: [...document.querySelectorAll('.thread *')].flatMap((e) => e.getAttributeNames()).filter((name) => name.startsWith('on')).length,
      links: [...document.querySelectorAll('a[href]:not(.skip)')].map((a) => a.protocol).filter((p) => !['http:', 'https:', 'mailto:'].includes(p)).length,
    }));
    assert.deepEqual(found, { hacked: undefined, elements: 0, handlers: 0, links: 0 });
  };

  test('an answer full of markup stays text', async () => {
    await with_settings({ max_tokens: 4 });
    await ask(kHostile);
    await page.click('.message.assistant [aria-label="Edit"]');
    await page.fill('.edit', kHostile);
    await page.click('.edit-form .primary');
    await page.waitForSelector('.message.assistant .code');
    await is_harmless();
    const text = await answers().locator('.message-body').innerText();
    for (const part of ['<img src=x onerror="window.hacked=1">', '[click](javascript:window.hacked=1)', '<iframe src="https://example.org"></iframe>', 'after']) {
      assert.ok(text.includes(part), `${part} is shown as it is`);
    }
    await page.reload();
    await page.waitForSelector('.message.assistant .code');
    await is_harmless();
  });

  test('so do tokens, titles, names of models and imported files', async () => {
    const evil = '<img src=x onerror="window.hacked=1">';
    await page.route('**/v1/models', (route) => route.fulfill({ json: { data: [{ id: evil, meta: { type: evil, architecture: evil, loaded: true, chat: true, bytes: 1 } }] } }));
    await page.route('**/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', body: `data: ${JSON.stringify({ choices: [{ index: 0,
      delta: { content: evil }, logprobs: { content: [{ token: evil, logprob: -1, top_logprobs: [{ token: evil, logprob: -1 }] }] }, finish_reason: 'stop' }] })}\n\ndata: [DONE]\n\n` }));
    await with_settings({});
    await page.click('.composer .toggle');
    await ask(evil);
    await page.hover('.token');
    assert.ok((await page.locator('.popover').innerText()).includes('<img'));
    await is_harmless();
    const file = { conversations: [{ id: evil, title: evil, leaf: 'b', messages: [{ id: 'a', parent: 'b', role: 'user', text: evil }, { id: 'b', parent: 'a', role: 'assistant', text: evil, error: evil }] }] };
    const load = async (text, told) => {
      const [chooser] = await Promise.all([page.waitForEvent('filechooser'), page.click('text=Import')]);
      await chooser.setFiles({ name: 'x.json', mimeType: 'application/json', buffer: Buffer.from(text) });
      await page.waitForSelector(`.toast >> text=${told}`);
    };
    await load(JSON.stringify(file), '1 conversation imported');
    await page.locator('.conversation .open').first().click();
    await is_harmless();
    await load('{"conversations": [{"id": 1}]}', 'damaged');
    await load('nonsense', 'not JSON');
  });

  test('a message of 1 MB does not stop the page', async () => {
    await page.context().setOffline(true);
    await send('*a [b](c `d` > - | _e_ '.repeat(45_000));
    await page.waitForSelector('.error');
    await page.context().setOffline(false);
    await page.click('.new-chat');
    await page.waitForSelector('.welcome');
  });
});

describe('keys', () => {
  test('a server with a key asks for it, once', async () => {
    const locked = await serve('--api-key', 'open sesame');
    try {
      await page.context().close();
      page = await open(browser, locked.base);
      await page.fill('dialog input[type="password"]', 'wrong');
      await page.click('dialog .primary');
      await page.waitForSelector('dialog >> text=does not accept');
      await page.fill('dialog input[type="password"]', 'open sesame');
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.querySelector('.picker').value !== '');
      await page.reload();
      await page.waitForFunction(() => document.querySelector('.picker').value !== '');
      assert.equal(await page.locator('dialog').count(), 0);
      assert.equal(await page.evaluate(() => localStorage.getItem('imago.key')), null, 'kept longer only if asked');
      await with_settings({ max_tokens: 8 });
      await ask(kPrompt);
      assert.match(await answers().locator('.stats').innerText(), /8 tokens/);
    } finally {
      await locked.stop();
    }
  });
});
