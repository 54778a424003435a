// A table of texts.

import * as React from 'react';
import { Scroll } from './pieces';

/** `marks`: the class of each row. The first cell heads its row; a column without a name has no heading. */
export const Table = React.memo(function Table(props: {
  label: string;
  columns: string[] | null;
  rows: string[][];
  marks?: string[];
  tight?: boolean;
}): JSX.Element {
  return (
    <Scroll label={props.label}>
      <table className={props.tight ? 'tpu-Table tpu-mod-tight' : 'tpu-Table'}>
        <caption className="tpu-Hidden">{props.label}</caption>
        {props.columns !== null && (
          <thead>
            <tr>
              {props.columns.map((name, at) =>
                name ? <Head key={at} name={name} /> : <td key={at} />
              )}
            </tr>
          </thead>
        )}
        <tbody>
          {props.rows.map((cells, at) => (
            <tr key={at} className={props.marks?.[at]}>
              {cells.map((cell, column) =>
                column === 0 && cell ? (
                  <th key={column} scope="row">
                    {cell}
                  </th>
                ) : (
                  <td key={column}>{cell}</td>
                )
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
});

function Head(props: { name: string }): JSX.Element {
  return <th scope="col">{props.name}</th>;
}
