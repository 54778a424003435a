// Tables of a run: rows of texts, and rows that unfold.

import * as React from 'react';
import { Item, SectionRow } from '../types';
import { Facts } from './facts';
import { Place, Scroll, TabStop, toneClass, useFirst } from './pieces';

const AT_ONCE = 50;

/** The first cell heads its row. */
export const Table = React.memo(function Table(props: {
  label: string;
  columns: readonly string[];
  rows: readonly SectionRow[];
}): JSX.Element {
  const [rows, more] = useFirst(props.rows, AT_ONCE);
  return (
    <>
      <Scroll label={props.label}>
        <table className="tpu-Table">
          <Head label={props.label} columns={props.columns} />
          <tbody>
            {rows.map((row, at) => (
              <TableRow key={at} row={row} />
            ))}
          </tbody>
        </table>
      </Scroll>
      {more}
    </>
  );
});

const TableRow = React.memo(function TableRow({ row }: { row: SectionRow }): JSX.Element {
  return (
    <tr className={toneClass(row.tone)}>
      {row.cells.map((cell, at) =>
        at === 0 && cell ? (
          <th key={at} scope="row">
            {cell}
          </th>
        ) : (
          <td key={at}>{at === 1 && row.site ? <Place site={row.site} words={cell} /> : cell}</td>
        )
      )}
    </tr>
  );
});

function Head(props: { label: string; columns: readonly string[] }): JSX.Element {
  return (
    <>
      <caption className="tpu-Hidden">{props.label}</caption>
      {props.columns.some(Boolean) && (
        <thead>
          <tr>
            {props.columns.map((name, at) =>
              name ? (
                <th key={at} scope="col">
                  {name}
                </th>
              ) : (
                <td key={at} />
              )
            )}
          </tr>
        </thead>
      )}
    </>
  );
}

/** Rows that unfold to facts. */
export const Items = React.memo(function Items(props: {
  label: string;
  columns: readonly string[];
  items: readonly Item[];
}): JSX.Element {
  const [items, more] = useFirst(props.items, AT_ONCE);
  return (
    <>
      <table className="tpu-Table tpu-Items">
        <Head label={props.label} columns={props.columns} />
        <tbody>
          {items.map(item => (
            <ItemRow key={item.key} item={item} columns={props.columns.length} />
          ))}
        </tbody>
      </table>
      {more}
    </>
  );
});

/** Items stay the same objects while their list grows, so that a row is drawn once. */
const ItemRow = React.memo(function ItemRow(props: { item: Item; columns: number }): JSX.Element {
  const { item } = props;
  const [open, setOpen] = React.useState(false);
  const id = React.useId();
  const [first = '', ...cells] = item.cells;
  return (
    <>
      <TabStop
        as="tr"
        className={`tpu-Item ${toneClass(item.tone)}`}
        data={{ 'data-key': item.key }}
      >
        <th scope="row">
          <button
            type="button"
            className="tpu-Unfold"
            aria-expanded={open}
            aria-controls={id}
            onClick={() => setOpen(!open)}
          >
            <span className="tpu-Caret" aria-hidden="true" />
            {first}
          </button>
        </th>
        {cells.map((cell, at) => (
          <td key={at} title={cell}>
            {at === 0 && item.site ? <Place site={item.site} words={cell} /> : cell}
          </td>
        ))}
      </TabStop>
      {open && (
        <tr className="tpu-Unfolded" id={id}>
          <td colSpan={Math.max(props.columns, item.cells.length)}>
            <Facts facts={item.facts} />
          </td>
        </tr>
      )}
    </>
  );
});
