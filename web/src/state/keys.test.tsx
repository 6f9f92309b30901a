import { screen } from "@testing-library/react";
import { beforeEach, describe, expect, it, vi } from "vitest";
import { show } from "../testing/show";
import { nameOf, setCharacterKeys, useKeys } from "./keys";

const acted = vi.fn();

function View() {
  useKeys({ " ": () => acted("space"), arrowdown: () => acted("down"), l: () => acted("l"), "mod+k": () => acted("mod+k") });
  return (
    <>
      <button type="button">Zoom in</button>
      <a href="#/x">link</a>
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div role="region" aria-label="scrolls" tabIndex={0}><button type="button">row</button></div>
      {/* oxlint-disable-next-line jsx-a11y/no-noninteractive-tabindex */}
      <div role="region" aria-label="lanes" tabIndex={0} data-page-keys />
      <input aria-label="search" />
      <dialog open aria-modal aria-label="help"><button type="button">in the dialog</button></dialog>
    </>
  );
}

const press = async (keys: string) => {
  const { user } = show(<View />);
  await user.keyboard(keys);
};
const focusing = async (role: string, name: string, keys: string) => {
  const { user, unmount } = show(<View />);
  screen.getByRole(role, { name }).focus();
  await user.keyboard(keys);
  unmount();
};

beforeEach(() => {
  acted.mockClear();
  setCharacterKeys(true);
});

describe("keys of a view", () => {
  it("act while nothing has the focus", async () => {
    await press(" {ArrowDown}l{Control>}k{/Control}");
    expect(acted.mock.calls.flat()).toEqual(["space", "down", "l", "mod+k"]);
  });
  it("leave Space to a button and to a link", async () => {
    await focusing("button", "Zoom in", " ");
    await focusing("link", "link", " ");
    expect(acted).not.toHaveBeenCalled();
  });
  it("let the arrows act while a button outside of any list has the focus", async () => {
    await focusing("button", "Zoom in", "{ArrowDown}");
    expect(acted).toHaveBeenCalledWith("down");
  });
  it("leave Space and the arrows to a region that scrolls, and to its content", async () => {
    await focusing("region", "scrolls", " {ArrowDown}");
    await focusing("button", "row", " {ArrowDown}");
    expect(acted).not.toHaveBeenCalled();
  });
  it("act in a region that leaves its keys to the view", async () => {
    await focusing("region", "lanes", " {ArrowDown}");
    expect(acted.mock.calls.flat()).toEqual(["space", "down"]);
  });
  it("leave all keys to a text field, except those with Ctrl", async () => {
    await focusing("textbox", "search", "l {ArrowDown}{Control>}k{/Control}");
    expect(acted.mock.calls.flat()).toEqual(["mod+k"]);
  });
  it("do not act behind a modal dialog", async () => {
    await focusing("button", "in the dialog", "l{ArrowDown}");
    expect(acted).not.toHaveBeenCalled();
  });
  it("that are a single character can be turned off (WCAG 2.1.4)", async () => {
    setCharacterKeys(false);
    await press("l {ArrowDown}{Control>}k{/Control}");
    expect(acted.mock.calls.flat()).toEqual(["down", "mod+k"]);
  });
});

it("names a key with its modifier", () => {
  const held = { ctrlKey: false, metaKey: false, altKey: false };
  expect(nameOf({ ...held, key: "K", ctrlKey: true })).toBe("mod+k");
  expect(nameOf({ ...held, key: "k", metaKey: true })).toBe("mod+k");
  expect(nameOf({ ...held, key: "ArrowLeft" })).toBe("arrowleft");
  expect(nameOf({ ...held, key: "?" })).toBe("?");
});
