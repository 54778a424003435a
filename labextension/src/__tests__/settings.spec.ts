// When the person's settings are told.

import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';
import { expect, it, vi } from 'vitest';
import { TpuSettings, Values } from '../settings';

it('tells nothing before they are loaded, and then each change', async () => {
  const source = {};
  const found = { composite: { updateRate: 2 }, changed: new Signal<object, void>(source) };
  const registry = { load: async () => found } as unknown as ISettingRegistry;
  const settings = new TpuSettings();
  const told: Values[] = [];
  settings.changed.connect((_, values) => told.push(values));
  const loading = settings.load(registry, 'tpu-magics:plugin');
  expect(told).toEqual([]);
  await loading;
  found.composite = { updateRate: 60 };
  found.changed.emit();
  expect(told.map(values => values.updateRate)).toEqual([2, 10]);
});

it('tells the defaults where they cannot be loaded', async () => {
  const warned = vi.spyOn(console, 'warn').mockImplementation(() => undefined);
  const settings = new TpuSettings();
  let told: Values | null = null;
  settings.changed.connect((_, values) => (told = values));
  const registry = { load: () => Promise.reject(new Error('no schema')) };
  await settings.load(registry as unknown as ISettingRegistry, 'tpu-magics:plugin');
  expect(told).toEqual({ updateRate: 0.5, badges: true });
  warned.mockRestore();
});
