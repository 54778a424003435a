// The user's settings, with defaults where there is no registry.

import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ISignal, Signal } from '@lumino/signaling';

/** `updateRate`: seconds between two updates of a live run. `badges`: whether lines have badges. */
export interface Values {
  updateRate: number;
  badges: boolean;
}

const DEFAULTS: Values = { updateRate: 0.5, badges: true };
const FASTEST = 0.1;
const SLOWEST = 10;

export class TpuSettings {
  get values(): Values {
    return this._values;
  }

  get changed(): ISignal<this, Values> {
    return this._changed;
  }

  /** Read them, and again whenever they change. What cannot be loaded leaves the defaults, which are told then. */
  async load(registry: ISettingRegistry, plugin: string): Promise<void> {
    try {
      const settings = await registry.load(plugin);
      settings.changed.connect(() => this.take(settings.composite));
      this.take(settings.composite);
    } catch (reason) {
      console.warn('tpu_magics: the settings could not be loaded; the defaults hold', reason);
      this.take({});
    }
  }

  take(found: { readonly [name: string]: unknown }): void {
    const { updateRate, badges } = found;
    this._values = {
      updateRate:
        typeof updateRate === 'number'
          ? Math.min(SLOWEST, Math.max(FASTEST, updateRate))
          : DEFAULTS.updateRate,
      badges: typeof badges === 'boolean' ? badges : DEFAULTS.badges
    };
    this._changed.emit(this._values);
  }

  private _values = DEFAULTS;
  private readonly _changed = new Signal<this, Values>(this);
}
