import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";
import type { Task } from "../../api/types";
import { show } from "../../testing/show";
import { Branch, forest, Lineage } from "./lineage";

const task = (id: string, parent = "", forked_at = 0) => ({ id, parent, forked_at, continuations: 0 }) as Task;

describe("the tree of tasks", () => {
  it("has forks after their parent, otherwise in the given order", () => {
    const tasks = [task("d", "b", 9), task("c", "a", 5), task("b", "a", 7), task("x"), task("a")];
    expect(forest(tasks).map(({ id, depth = 0 }) => `${depth} ${id}`)).toEqual(["0 x", "0 a", "1 c", "1 b", "2 d"]);
  });
  it("keeps a fork whose parent is not listed", () => {
    expect(forest([task("c", "gone", 5), task("a")]).map(({ id }) => id)).toEqual(["c", "a"]);
  });
});

it("says where a fork in the list began", () => {
  show(<a href="#/"><Branch task={task("trial", "train", 40)} /></a>);
  expect(screen.getByRole("link", { name: "trial fork of train at step 40" })).toBeTruthy();
  show(<a href="#/"><Branch task={{ ...task("deep", "trial", 50), depth: 2 }} /></a>);
  expect(screen.getByText("at step 50")).toBeTruthy();
  expect(screen.getByRole("link", { name: "deep fork of trial at step 50" })).toBeTruthy();
});

it("links a fork to its parent and says how often the task was continued", () => {
  show(<Lineage task={{ ...task("trial", "train", 40), continuations: 2 }} />);
  expect(screen.getByRole("region", { name: "Lineage" }).textContent).toBe("Fork of train at step 40Continued 2 times");
  expect(screen.getByRole("link", { name: "train" }).getAttribute("href")).toBe("#/tasks/train");
});

it("shows nothing for a task without relatives", () => {
  show(<Lineage task={task("train")} />);
  expect(screen.queryByRole("region", { name: "Lineage" })).toBeNull();
});
