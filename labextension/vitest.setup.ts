// What JupyterLab's packages ask a browser for as they are loaded, and jsdom does not have.

class DragEventHere extends MouseEvent {}

class ObserverHere {
  observe(): void {}
  unobserve(): void {}
  disconnect(): void {}
}

const media = (query: string): Partial<MediaQueryList> => ({
  matches: false,
  media: query,
  addListener: () => undefined,
  removeListener: () => undefined,
  addEventListener: () => undefined,
  removeEventListener: () => undefined
});

const lacking = {
  DragEvent: DragEventHere,
  IntersectionObserver: ObserverHere,
  ResizeObserver: ObserverHere,
  matchMedia: media,
  requestIdleCallback: (callback: () => void) => setTimeout(callback, 0)
};

for (const [name, value] of Object.entries(lacking)) {
  if ((globalThis as Record<string, unknown>)[name] === undefined) {
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }
}
